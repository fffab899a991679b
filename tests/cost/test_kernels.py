"""Seconds of kernels: rooflines that can be checked by hand, what shapes lose, and numbers and arrays alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.cost.kernel_shares import calibration, efficiency, generation, interval
from foretell.cost.kernels import Device, Efficiency, attention, matmul, traffic
from foretell.machine.hardware import load_hardware

PLAIN = Device(peak=1e15, low_peak=2e15, bandwidth=1e12, processors=100.0)
IDEAL = Efficiency(
    matmul=1.0,
    wave=0.0,
    fill=0.0,
    tile=0.0,
    power=0.0,
    onset=1e-3,
    result=0.0,
    low=1.0,
    group=0.0,
    memory=1.0,
    operand_memory=1.0,
    floor=0.0,
    attention=1.0,
    attention_backward=1.0,
    attention_fill=0.0,
    attention_call=0.0,
    wide_head=1.0,
)
FAST = replace(PLAIN, bandwidth=1e18)
LLAMA = {"qkv": (6144, 4096), "out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Columns and inner dimension of the linear layers of Llama-3-8B."""
GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm", "mi300x")
aligned = st.integers(1, 2048).map(lambda x: 8 * x)


def device(gpu: str) -> tuple[Device, Efficiency]:
    h = load_hardware(gpu)
    assert h.sm_count
    half = h.peak("bf16")
    found = Device(half, h.peak_flops.get("fp8", half), h.memory_bandwidth_bytes_per_s, float(h.sm_count))
    return found, efficiency(h.compute_capability, h.id)


def test_rooflines_by_hand() -> None:
    # 2 x 4096^3 FLOP at 1 PFLOP/s
    assert matmul(4096, 4096, 4096, FAST, IDEAL) == pytest.approx(2 * 4096**3 / 1e15)
    assert matmul(4096, 4096, 4096, FAST, IDEAL, low=1.0) == pytest.approx(4096**3 / 1e15)
    # 2 bytes x (128 x 8192 + 8192 x 8192 + 128 x 8192) at 1 TB/s, 138 us, beside 17 us of arithmetic
    assert matmul(128, 8192, 8192, PLAIN, IDEAL) == pytest.approx(138.4e-6, rel=1e-3)
    # a causal head of 4096 tokens: 2 x 4096^2 / 2 x (128 + 128) FLOP; five products instead of two backward
    causal = (4096 * 4096 / 2, 4096, 32, 128, 128, FAST, IDEAL)
    assert attention(*causal) == pytest.approx(32 * 4096**2 * 256 / 1e15)
    assert attention(*causal, backward=True) == pytest.approx(2.5 * attention(*causal))
    assert traffic(2e9, PLAIN, IDEAL) == pytest.approx(2e-3)


def test_what_does_not_fill_a_tile_or_a_wave_is_lost() -> None:
    whole = replace(IDEAL, wave=1.0)
    full = matmul(1280, 2560, 4096, FAST, whole)  # 10 x 10 tiles of 128 x 256 on 100 processors
    assert full == pytest.approx(2 * 1280 * 2560 * 4096 / 1e15)
    assert matmul(1281, 2560, 4096, FAST, whole) > 1.04 * full
    few = matmul(
        128, 256, 16384, FAST, whole
    )  # eight tiles of 64 x 64 for 100 processors, or 32 of them with a cut inner dimension
    assert few > 3 * 2 * 128 * 256 * 16384 / 1e15
    assert few < 8 * 2 * 128 * 256 * 16384 / 1e15


def test_unaligned_sizes_take_longer() -> None:
    assert matmul(8192, 50257, 768, FAST, IDEAL) > 1.9 * matmul(8192, 50304, 768, FAST, IDEAL)
    assert matmul(8192, 4096, 1001, FAST, IDEAL) > 1.9 * matmul(8192, 4096, 1008, FAST, IDEAL)
    size = (8 * 2048 * 2048 / 2, 8 * 2048, 12)
    assert attention(*size, 66, 66, FAST, IDEAL) > 1.7 * attention(*size, 72, 72, FAST, IDEAL)


def test_load_that_lasts_is_slower_and_a_result_is_written_after_its_products() -> None:
    hot = replace(IDEAL, power=0.5, onset=1e-3)
    short, long = (matmul(n, 4096, 4096, FAST, hot) / matmul(n, 4096, 4096, FAST, IDEAL) for n in (1024, 2**20))
    assert short < 1.05
    assert 1.45 < long < 1.5
    late = replace(IDEAL, result=1.0, operand_memory=0.5)
    sizes = (8192, 8192, 8192)
    # 4 bytes read and 4 written of 8192 x 8192 elements at half of 1 TB/s
    more = matmul(*sizes, PLAIN, late, result=4.0, accumulate=1.0) - matmul(*sizes, PLAIN, replace(late, result=0.0))
    assert more == pytest.approx(8 * 8192**2 / 0.5e12, rel=0.1)  # and a little where traffic and arithmetic meet


def test_experts_run_a_few_at_a_time_and_are_launched_one_by_one() -> None:
    shares = replace(IDEAL, wave=1.0, tile=0.3)
    sizes: Any = {"m": 128, "n": 1024, "k": 7168, "batch": 256.0, "device": FAST}
    assert matmul(e=shares, grouped=1.0, **sizes) > 1.1 * matmul(e=shares, **sizes)
    launched = replace(shares, group=1e-3)
    assert matmul(e=launched, grouped=1.0, **sizes) == pytest.approx(0.256)
    assert matmul(e=launched, **sizes) == matmul(e=shares, **sizes)


def test_the_longest_of_few_blocks_decides() -> None:
    one = attention(512 * 512 / 2, 512, 1, 128, 128, FAST, IDEAL)  # four blocks for 100 processors
    assert one == pytest.approx(2 * (512 * 512 / 2 / 4) * 2 * 256 / (1e15 / 100))
    call = replace(IDEAL, attention_call=1e-3)
    assert attention(512 * 512 / 2, 512, 1, 128, 128, FAST, call, alone=True) == pytest.approx(one + 1e-3)


@pytest.mark.parametrize("name", LLAMA)
def test_linear_layers_of_llama_3_8b_on_h100(name: str) -> None:
    n, k = LLAMA[name]
    h100, shares = device("h100-sxm-80gb")
    ridge = h100.peak / h100.bandwidth
    assert ridge == pytest.approx(295, rel=0.01)

    def gains(m: float) -> tuple[float, float]:
        """What twice the arithmetic, and twice the bandwidth, would gain."""
        now = matmul(m, n, k, h100, shares)
        return (
            now / matmul(m, n, k, replace(h100, peak=2 * h100.peak), shares),
            now / matmul(m, n, k, replace(h100, bandwidth=2 * h100.bandwidth), shares),
        )

    arithmetic, bandwidth = gains(1)
    assert arithmetic < 1.05
    assert bandwidth > 1.3  # less than two: the floor stays
    arithmetic, bandwidth = gains(16 * ridge)
    assert arithmetic > 1.6
    assert bandwidth < 1.1
    # one token: the weights once, at the share of the bandwidth that products reach
    weights = 2.0 * n * k / (h100.bandwidth * shares.operand_memory)
    assert matmul(1, n, k, h100, shares) == pytest.approx(weights + shares.floor, rel=0.05)


@given(m=aligned, n=aligned, k=aligned, more=aligned, gpu=st.sampled_from(GPUS), grouped=st.booleans())
def test_more_work_never_takes_less_time(m: int, n: int, k: int, more: int, gpu: str, grouped: bool) -> None:
    on, shares = device(gpu)

    def time(m: float, n: float, k: float, batch: float = 1.0) -> float:
        return float(matmul(m, n, k, on, shares, batch=batch, grouped=float(grouped)))

    now = time(m, n, k)
    assert now >= max(2 * m * n * k / on.peak, 2 * (m * k + n * k + m * n) / on.bandwidth)
    slack = 1 - 1e-9
    assert min(time(m + more, n, k), time(m, n + more, k), time(m, n, k + more), time(m, n, k, 2.0)) >= now * slack


@given(
    length=st.integers(1, 2**17),
    more=st.integers(1, 2**17),
    heads=st.integers(1, 128),
    width=st.sampled_from((64, 80, 128, 192)),
    gpu=st.sampled_from(GPUS),
    backward=st.booleans(),
)
def test_longer_sequences_and_more_heads_never_take_less(
    length: int, more: int, heads: int, width: int, gpu: str, backward: bool
) -> None:
    on, shares = device(gpu)

    def time(length: float, heads: float) -> float:
        return float(attention(length * length / 2, length, heads, width, 128, on, shares, backward=backward))

    now = time(length, heads)
    assert now >= 2 * length * length / 2 * heads * (width + 128) / on.peak
    assert time(length + more, heads) >= now * (1 - 1e-9)
    assert time(length, heads + 1) >= now * (1 - 1e-9)


def test_numbers_and_arrays_agree() -> None:
    on, shares = device("b200-sxm")
    m, n, k = (
        np.array([1.0, 64, 4096, 100, 8192]),
        np.array([4096.0, 8192, 50257, 4096, 160]),
        np.array([4096.0, 128, 768, 33, 65536]),
    )
    given: Any = {
        "batch": np.array([1.0, 8, 1, 2, 256]),
        "grouped": np.array([0.0, 1, 0, 0, 1]),
        "low": np.array([0.0, 0, 1, 0, 1]),
    }
    together = matmul(m, n, k, on, shares, **given)
    for i in range(len(m)):
        one = matmul(
            float(m[i]), float(n[i]), float(k[i]), on, shares, **{name: float(values[i]) for name, values in given.items()}
        )
        assert isinstance(one, float)
        assert together[i] == pytest.approx(one, rel=1e-12)
    queries, heads = np.array([1.0, 128, 4096]), np.array([1.0, 8, 128])
    widths, v_widths = np.array([192.0, 66, 128]), np.array([128.0, 66, 128])
    for backward in (False, True):
        every = attention(queries**2 / 2, queries, heads, widths, v_widths, on, shares, backward=backward)
        for i, q in enumerate(queries.tolist()):
            sizes = (q * q / 2, q, float(heads[i]), float(widths[i]), float(v_widths[i]))
            assert every[i] == pytest.approx(attention(*sizes, on, shares, backward=backward), rel=1e-12)


def test_the_file_holds_bounded_shares_with_their_sources() -> None:
    data = calibration()
    assert set(data["constants"]) == set(Efficiency.names())
    for values in data["generations"].values():
        assert set(values) == set(Efficiency.names())
        for name, value in values.items():
            low, high = data["constants"][name]["range"]
            assert low <= value <= high
            assert data["constants"][name]["source"]
    assert {"hopper", "blackwell", "ampere"} == set(data["generations"])


def test_devices_without_rows_take_the_nearest_generation() -> None:
    assert [generation(cc) for cc in ("8.0", "8.9", "7.0", "9.0", "10.3", "gfx942", None)] == [
        *("ampere", "ampere", "ampere"),
        *("hopper", "blackwell", "hopper", "hopper"),
    ]
    assert efficiency("gfx942", "mi300x").matmul == pytest.approx(0.51)
    assert efficiency("gfx942", "mi325x").matmul == pytest.approx(0.60)
    assert efficiency("gfx942", "mi300x").wave == efficiency("9.0").wave
    known, unknown = interval(1.0, "gemm", "9.0", "h100-sxm-80gb"), interval(1.0, "gemm", "gfx942", "mi300x")
    assert unknown[0] < known[0] < 1 < known[1]
    assert unknown[1] - unknown[0] > known[1] - known[0]

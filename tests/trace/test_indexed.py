"""Every kind of index, read and written, in a layer as it is and in one that is computed again in autograd's own thread."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foretell.trace import ModelRequest, Recording, TraceRequest, record
from foretell.trace.events import Storage

torch = pytest.importorskip("torch")

FILE = Path(__file__).with_name("indexed.py")
KINDS = ("plain", "checkpointed", "reentrant")
FALCON = {
    "model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "multi_query": True, "vocab_size": 512, "new_decoder_architecture": False, "parallel_attn": True,
    "bias": False, "alibi": False,
}  # fmt: skip


def jobs() -> Any:
    spec = importlib.util.spec_from_file_location(f"{__name__}_jobs", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def on_gpu(kind: str) -> Recording:
    return record(TraceRequest(target=f"{FILE}:{kind}"))


def events(recording: Recording) -> list[tuple[bool, Storage]]:
    return [(allocates, storage) for allocates, _, storage in recording.events()]


def made(recording: Recording, phase: str) -> list[int]:
    """Bytes of what the second step makes of Python numbers on the device, in one of its phases."""
    return [
        s.bytes
        for s in recording.storages
        if s.op == "aten::_to_copy" and (recording.phases[s.phase].name, recording.phases[s.phase].step) == (phase, 1)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_the_real_step(kind: str) -> None:
    from foretell.trace.engine.session import Settings, Traced, machine

    found = {}
    for fake in (True, False):
        with Traced(getattr(jobs(), kind), machine(Settings(device="cpu", fake=fake))) as traced:
            found[fake] = traced.record()
    assert found[True].phases == found[False].phases
    assert events(found[True]) == events(found[False])


def test_an_index_of_numbers_is_copied_to_the_device_each_time() -> None:
    plain = made(on_gpu("plain"), "forward")
    assert set(plain) == {2, 4, 8, 16, 32}  # booleans, a float, one to four positions
    assert not made(on_gpu("plain"), "backward")


@pytest.mark.parametrize("kind", ["checkpointed", "reentrant"])
def test_what_is_computed_again_makes_its_indices_again(kind: str) -> None:
    first, again = made(on_gpu(kind), "forward"), made(on_gpu(kind), "backward")
    assert first == made(on_gpu("plain"), "forward")
    assert again == first[: len(again)]  # a checkpoint that is not re-entrant stops once all that is needed is there
    assert len(again) >= (len(first) if kind == "reentrant" else len(first) - 2)


def test_falcon_is_computed_again() -> None:
    pytest.importorskip("transformers")

    def positions(recompute: str) -> int:
        asked = ModelRequest(content=FALCON, where="here", seq_len=64, recompute=recompute)
        recording = record(TraceRequest(model=asked))
        return sum(s.op == "aten::_to_copy" and s.bytes == 8 and "falcon" in s.line for s in recording.storages)

    assert positions("full") == 2 * positions("none") > 0

"""Rows of measured servers: which deployment answered which load, and what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.arch import load_model
from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.cost.serving_host import EngineTime
from foretell.evidence.row_run import Skip
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.serving import ServingRecipe, Speculation
from foretell.validation import number

__all__ = ["METRICS", "ServingRow", "serving_row"]

METRICS: Final = (
    "ttft_s",
    "itl_s",
    "output_tokens_per_s",
    "input_tokens_per_s",
    "total_tokens_per_s",
    "ttft_p99_s",
    "itl_p99_s",
    "kv_tokens",
    "kv_bytes",
    "itl_slope_s_per_context_token",
)
"""Measured values that are predicted, with the units of the schema."""
_BAND: Final[dict[str, tuple[float, float]]] = {
    # MLPerf dataset -> mean input and output tokens, from the benchmark's own reference implementations
    # (mlcommons/inference, language/<model>/README.md and the dataset statistics of its submission checker)
    "mlperf-llama2-70b": (294.0, 294.0),  # OpenOrca, 24,576 samples
    "mlperf-mixtral-8x7b": (277.0, 145.0),  # OpenOrca, GSM8K and MBXP together
    "mlperf-llama3.1-8b": (778.0, 128.0),  # CNN/DailyMail
    "mlperf-llama3.1-405b": (9428.0, 684.0),  # LongBench, LongDataCollections, Ruler, GovReport
    "mlperf-llama3_1-405b": (9428.0, 684.0),
}
_ACCELMARK: Final = 300
"""Requests that AccelMark's online scenario sends (its runner's default, and what its rows state where they do)."""
_NATURAL: Final = ("sharegpt_standard_v1", "sharegpt_longctx_v1", "sharegpt_edge_v1", "lm-arena-chat")
"""Data sets of real conversations: lengths vary."""
_SPREAD: Final = 0.5
"""Standard deviation of their prompts' lengths over the mean: on idle servers the p99 of TTFT is about twice the median where
prompts decide it."""


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A row as a deployment under a demand."""

    deployment: Deployment
    demand: Demand | None
    """None: capacity at start-up."""
    measured: Mapping[str, float]
    gpus: int
    per_gpu: bool
    """Throughputs are of one accelerator."""
    statistic: str
    """mean, median, unstated or fit-intercept; of TTFT where that differs."""
    ttft_statistic: str
    engine_only: bool
    """TTFT is the prefill's alone: no queue, no client."""
    step_gap: bool
    """``itl_s`` is the gap between steps, not the mean time per token."""
    feasible: bool | None
    band: bool
    """A whole-system figure that says neither lengths nor layout nor format: reported apart."""
    notes: tuple[str, ...] = ()


def serving_row(row: Mapping[str, Any], engine: EngineTime | None = None) -> ServingRow:
    """Read a row; :class:`~foretell.evidence.row_run.Skip` where it cannot be scored.  ``engine`` replaces constants (fits)."""
    hardware = load_hardware(row["hardware"]["gpu"])
    model = load_model(dict(row["model"]["config"]))
    serving, load, measured = row["serving"], row["load"], row["measured"]
    gpus = int(row["hardware"]["gpus"])
    notes: list[str] = []
    band = str(row["source"]["title"]).startswith("MLPerf")
    if "disaggregated" in serving and "input_tokens" not in load:
        raise Skip("underspecified: load.input_tokens of a decoding node is absent")
    demand = None if load["kind"] == "capacity" else _demand(load, serving, band=band, notes=notes)
    if demand is not None and demand.kind == "open" and demand.requests is None and "AccelMark" in str(row["source"]["title"]):
        demand = replace(demand, requests=_ACCELMARK)
        notes.append(f"{_ACCELMARK} requests, as the source sends at every rate")
    recipe = _recipe(row, hardware, notes)
    if band:
        recipe = _smallest(recipe, model, hardware, gpus, notes)
    longest = None if demand is None else int(demand.inputs + (demand.longest or demand.outputs))
    if "tp" not in serving and gpus > 1 and not band:
        raise Skip("underspecified: serving.tp is absent")
    found = deployment(
        model,
        hardware,
        recipe,
        gpus_per_node=row["hardware"].get("gpus_per_node"),
        offline=load["kind"] in ("offline", "static"),
        longest=longest,
        engine=engine,
    )
    values = {name: _value(measured[name], name) for name in METRICS if name in measured}
    statistic = str(measured.get("statistic", "unstated"))
    return ServingRow(
        deployment=found,
        demand=demand,
        measured=values,
        gpus=gpus,
        per_gpu=measured.get("throughput_scope") == "per_gpu",
        statistic=statistic,
        ttft_statistic=str(measured.get("ttft_statistic", statistic)),
        engine_only=measured.get("ttft_kind") == "prefill only",
        step_gap=measured.get("itl_kind") == "itl",
        feasible=measured.get("feasible"),
        band=band,
        notes=tuple(notes),
    )


def _value(given: object, name: str) -> float:
    least = -1e15 if name == "kv_bytes" else 0.0
    return number(given, f"measured.{name}", minimum=least, maximum=1e15)


def _recipe(row: Mapping[str, Any], hardware: HardwareNode, notes: list[str]) -> ServingRecipe:
    serving, engine = row["serving"], row["engine"]
    half = "bf16" if "bf16" in hardware.peak_flops else "fp16"
    weights = serving.get("weights_dtype")
    if weights is None:
        weights = "fp8" if "fp8" in hardware.peak_flops else half
        notes.append(f"format not stated: {weights}")
    shares = ("gpu_memory_utilization", "kv_cache_free_memory_fraction", "mem_fraction_static")
    share = next((serving[name] for name in shares if name in serving), None)
    return ServingRecipe(
        engine=engine["name"],
        version=engine.get("version"),
        weights=weights,
        activations=serving.get("activation_dtype"),
        kv=serving.get("kv_dtype") or (half if str(weights) not in ("fp8", "nvfp4") or "vllm" in engine["name"] else "fp8"),
        tp=serving.get("tp", 1),
        pp=serving.get("pp", 1),
        ep=serving.get("ep", 1),
        dp=serving.get("dp", 1),
        dp_kind=serving.get("dp_kind", "replica"),
        max_num_seqs=serving.get("max_num_seqs"),
        max_num_batched_tokens=serving.get("max_num_batched_tokens"),
        max_model_len=serving.get("max_model_len"),
        memory_share=share,
        chunked_prefill=serving.get("chunked_prefill"),
        enforce_eager=bool(serving.get("enforce_eager", False)),
        speculation=_speculation(serving.get("speculative")),
    )


def _speculation(given: Mapping[str, Any] | None) -> Speculation | None:
    if given is None:
        return None
    if "acceptance_length" not in given:
        raise Skip("underspecified: serving.speculative.acceptance_length is absent")
    length = number(given["acceptance_length"], "acceptance_length", minimum=1.0)
    return Speculation(str(given.get("method")), int(given.get("draft_tokens") or max(1, round(length))), length=length)


def _demand(load: Mapping[str, Any], serving: Mapping[str, Any], *, band: bool, notes: list[str]) -> Demand:
    inputs, outputs = load.get("input_tokens"), load.get("output_tokens")
    if band:
        known = _BAND.get(str(load.get("dataset")))
        if known is None:
            raise Skip("underspecified: load.input_tokens is absent")
        inputs, outputs = known[0], outputs or known[1]
        notes.append(f"input of the data set: {known[0]:.0f} tokens on average")
    span = load.get("context_tokens_range")
    if inputs is None and span:
        inputs = 0.0 if "itl_slope" in str(load) else float(span[0])
    role = (serving.get("disaggregated") or {}).get("role")
    if role == "prefill" and outputs is None:
        outputs = 1
    if inputs is None or outputs is None:
        raise Skip(f"underspecified: load.{'input' if inputs is None else 'output'}_tokens is absent")
    cap = load.get("max_output_tokens")
    kind = str(load["kind"])
    natural = str(load.get("dataset")) in _NATURAL
    return Demand(
        kind=kind,
        inputs=float(inputs),
        outputs=float(outputs),
        longest=float(cap) if cap and float(cap) > float(outputs) else None,
        concurrency=_positive(load, "batch" if kind == "static" else "concurrency"),
        rate=_positive(load, "request_rate_per_s"),
        arrival_cv=float(load.get("arrival_cv", 1.0)),
        burst=load.get("burst"),
        requests=int(load["requests"]) if "requests" in load else None,
        input_cv=_SPREAD if natural and "longctx" not in str(load.get("dataset")) else 0.0,
    )


def _positive(load: Mapping[str, Any], name: str) -> float | None:
    return number(load[name], f"load.{name}", minimum=1e-9, maximum=1e9) if name in load else None


def _smallest(recipe: ServingRecipe, model: Any, hardware: HardwareNode, gpus: int, notes: list[str]) -> ServingRecipe:
    """A whole system whose layout is not stated: as many replicas as the fewest ranks that hold the weights leave."""
    arch = model.architecture.text or model.architecture
    held = arch.parameters * (1.0 if recipe.weights == "fp8" else 2.0)
    tp = 1
    while tp < gpus and held / tp > 0.7 * hardware.memory_bytes and (arch.heads or 1) % (2 * tp) == 0:
        tp *= 2
    notes.append(f"layout not stated: tp {tp}, {max(1, gpus // tp)} replicas")
    return replace(recipe, tp=tp, dp=max(1, gpus // tp))

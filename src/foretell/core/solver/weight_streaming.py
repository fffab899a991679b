"""WeightStreamingModel: a model whose weights stream through a wafer, or from a host through an accelerator, layer by layer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core.solver._result import Result, Term, gib, ledger
from foretell.core.solver._serving import LAYOUT, precision_notes, served
from foretell.cost.arrays import Value
from foretell.cost.overheads import available_bytes, context_bytes
from foretell.cost.weight_streaming import Pass, Streamed, streamed
from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.units import parse
from foretell.validation import MAX_SEQUENCE, choice, positive_int

if TYPE_CHECKING:
    from foretell.core.serving import Deployment
    from foretell.core.solver._table import Table

__all__ = ["WeightStreamingModel", "WeightStreamingResult"]

PHASES: Final = ("decode", "prefill")
BOUNDS: Final = ("Interconnect-Bandwidth-Bound", "Compute-Bound")
WAFER: Final = "wafer"
LEAST_RATE: Final = 1.0
"""Bytes/s; slower is no injection."""


@dataclass(frozen=True)
class WeightStreamingResult(Result):
    """One pass.  Seconds and bytes; the names without `_s` and `_bytes` are pint quantities."""

    title: ClassVar[str] = "memory"

    feasible: bool
    """Whether keys, values and activations (and two layers, where the device holds weights) fit the device."""
    throughput_tokens_per_sec: float
    """Tokens made (decode) or read (prefill); 0 where it does not fit."""
    bottleneck: str
    """Compute-Bound or Interconnect-Bandwidth-Bound."""
    layer_compute_time_s: float
    """Of the mean layer, attention included."""
    layer_injection_time_s: float
    """Of the mean layer's weights; of routed experts, those that the batch visits."""
    pass_time_s: float
    """All layers and the output projection, each as long as the longer of its two times."""
    optimal_batch_size: int
    """Largest batch whose arithmetic takes no longer than the injection; it may need more memory than there is."""
    max_batch_size: int
    """Largest batch that the memory holds."""
    wafer_memory_utilization: float
    """Of what a process can use of the device's memory."""
    kv_cache_size_bytes: float
    activations_size_bytes: float
    weight_buffers_size_bytes: float
    """Two of the largest piece that is streamed at once, a layer or the output head; 0 on wafers, which work on weights as they
    arrive."""
    total_memory_required_bytes: float
    available_memory_bytes: float
    injection_bandwidth_bytes_per_s: float
    phase: str
    constraint_trace: list[str]
    """What has to fit, and which time decides."""
    notes: list[str]
    """Assumptions made, terms left out."""
    _terms: tuple[Term, ...] = ()

    def terms(self) -> list[Term]:
        """Return the ledger's terms, which sum to `total_memory_required`."""
        return list(self._terms)

    def explain(self) -> str:
        """Return times and the ledger of the device's memory as text."""
        lines = [
            f"{self.throughput_tokens_per_sec:.4g} tokens/s ({self.phase}), {self.bottleneck}",
            f"  layer: injection {self.layer_injection_time_s * 1e3:.4g} ms, compute {self.layer_compute_time_s * 1e3:.4g} ms",
            f"  pass {self.pass_time_s * 1e3:.4g} ms; the two balance at a batch of {self.optimal_batch_size}",
            ledger(self.title, self.terms()),
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class WeightStreamingModel:
    """How fast is a model that is larger than its device, with weights that stream in layer by layer?

    On a wafer they come from the store beside it, on other devices from the host over PCIe (`injection_bandwidth` says otherwise:
    "7 GB/s" of an SSD), while the layer before computes.  Keys, values and activations stay on the device.  `phase` decode: one
    token of each of `batch_size` sequences, which sees `seq_len` tokens; prefill: all `seq_len` tokens of each are read, causal.

    `precision`, `weights`, `kv_format` and `efficiency`: as for ServingModel.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        seq_len: int,
        batch_size: int = 1,
        precision: str = "fp16",
        efficiency: float | str = 0.5,
        phase: str = "decode",
        injection_bandwidth: object = None,
        weights: str | None = None,
        kv_format: str | None = None,
    ) -> WeightStreamingResult:
        """Answer for one pass; InputError for what cannot stream so.

        >>> result = WeightStreamingModel().solve("llama-3.1-70b", "cerebras-wse3", 2048)
        >>> result.bottleneck, result.feasible
        ('Interconnect-Bandwidth-Bound', True)
        """
        asked = Asked.of(
            load_model(model),
            load_hardware(hardware),
            {
                "precision": precision,
                "efficiency": efficiency,
                "phase": phase,
                "injection_bandwidth": injection_bandwidth,
                "weights": weights,
                "kv_format": kv_format,
            },
        )
        batch = positive_int(batch_size, "batch_size")
        tokens = positive_int(seq_len, "seq_len", maximum=MAX_SEQUENCE)
        return _answer(asked, batch, tokens)

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason, those that do not fit are not `feasible`.
        """
        from foretell.core.solver._serving_sweep import sweep_streaming  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep_streaming(load_model(model), load_hardware(hardware), axes, product=product)


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers of passes, or arrays of them."""

    one: Pass
    kept: Value
    working: Value
    total: Value
    feasible: Value
    throughput: Value
    balanced: Value
    most: Value
    """Sequences that the memory holds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that streams through a device, ready for numbers or arrays of sequences."""

    found: Deployment
    model: Streamed
    decode: bool
    context: float
    available: float

    @classmethod
    def of(cls, workload: Workload, device: HardwareNode, given: Mapping[str, Any]) -> Asked:
        """Check what does not depend on the batch."""
        phase = choice(given["phase"], "phase", PHASES)
        rate = injection_rate(device, given["injection_bandwidth"])
        layout = LAYOUT | {"weights": given["weights"], "kv_format": given["kv_format"]}
        found = served(workload, device, given["precision"], given["efficiency"], layout)
        keeps = device.kind != WAFER
        model = streamed(found.steps, found.recipe.weights, found.capacity.stage, rate, keeps=keeps)
        context = context_bytes(device) if device.cuda_like else 0.0
        return cls(found, model, phase == "decode", context, float(available_bytes(device)))

    def figures(self, batch: Value, tokens: Value) -> Figures:
        """Return the numbers of passes."""
        model, decode = self.model, self.decode
        one = model.run(batch, tokens, decode=decode)
        kept, working = model.kept(batch, tokens), model.working(batch, tokens, decode=decode)
        fixed = model.buffers + self.context
        each = model.kept(1.0, tokens) + model.working(1.0, tokens, decode=decode)
        total = kept + working + fixed
        feasible = total <= self.available
        made = batch * 1.0 if decode else batch * 1.0 * tokens
        balanced = model.balanced(tokens * 1.0, decode=decode)
        most = max(self.available - fixed, 0.0) // each
        return Figures(one, kept, working, total, feasible, feasible * made / one.total, balanced, most)


def injection_rate(device: HardwareNode, given: object) -> float:
    """Return the bytes/s at which weights come in: those given, else of a wafer's store, else of PCIe."""
    if given is not None:
        rate = parse(given, "byte/s", "injection_bandwidth")
        if rate < LEAST_RATE:
            raise InputError("is no injection", field="injection_bandwidth", value=given, allowed="above 0")
        return rate
    known = device.link.bandwidth_bytes_per_s if device.kind == WAFER and device.link is not None else None
    if device.kind != WAFER and device.pcie is not None:
        known = device.pcie.bytes_per_s
    if not known:
        hint = 'say how fast weights come in, as in injection_bandwidth="63 GB/s"'
        raise InputError(f"is not known of {device.name}", field="injection_bandwidth", hint=hint)
    return float(known)


def _answer(asked: Asked, batch: int, tokens: int) -> WeightStreamingResult:
    found, model, device = asked.figures(batch, tokens), asked.model, asked.found.hardware
    terms = (
        Term("kv_cache", float(found.kept), "", "keys, values and states of the batch", "KV layout"),
        Term("activations", float(found.working), "", "residual stream, widest tensors of a layer, logits", "operators"),
        Term("weight_buffers", model.buffers, "", "the layer that computes and the one that comes", "parameters"),
        Term("process", asked.context, "", "context", "memory calibration"),
    )
    total, feasible, one = float(found.total), bool(found.feasible), found.one
    verdict = "within" if feasible else f"{gib(total - asked.available)} over"
    slower = "compute" if one.bound else "injection"
    trace = [
        f"{', '.join(f'{t.name} {gib(t.bytes)}' for t in terms)}: {verdict} the {gib(asked.available)} available",
        f"layer: injection {float(one.injection) * 1e3:.4g} ms, compute {float(one.compute) * 1e3:.4g} ms: {slower} decides",
    ]
    notes = [
        *asked.found.workload.notes,
        *precision_notes(asked.found),
        f"weights come in at {model.rate / 1e9:.4g} GB/s, all of them for every pass; the next layer's while one computes",
    ]
    if device.kind == WAFER and device.link is not None and device.link.note:
        notes.append(f"{device.link.name}: {device.link.note}")
    if asked.found.steps.share is not None:
        notes.append("two roofs: a share of the peak for arithmetic, all of the bandwidth for traffic")
    else:
        notes.append("no run with weights that stream in was measured: no interval")
    if "peak_flops" in device.estimates:
        notes.append(f"the peak of {device.name} is an estimate")
    return WeightStreamingResult(
        feasible=feasible,
        throughput_tokens_per_sec=float(found.throughput),
        bottleneck=BOUNDS[int(bool(one.bound))],
        layer_compute_time_s=float(one.compute),
        layer_injection_time_s=float(one.injection),
        pass_time_s=float(one.total),
        optimal_batch_size=int(found.balanced),
        max_batch_size=int(found.most),
        wafer_memory_utilization=total / asked.available,
        kv_cache_size_bytes=float(found.kept),
        activations_size_bytes=float(found.working),
        weight_buffers_size_bytes=model.buffers,
        total_memory_required_bytes=total,
        available_memory_bytes=asked.available,
        injection_bandwidth_bytes_per_s=model.rate,
        phase=PHASES[0 if asked.decode else 1],
        constraint_trace=trace,
        notes=list(dict.fromkeys(notes)),
        _terms=tuple(t for t in terms if t.bytes),
    )

"""From the options of a run to a launch: texts checked, degrees completed, what was assumed written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

from foretell.arch import load_model
from foretell.cli._values import fraction, listed, month, one_of, real, whole
from foretell.core._device import usual_precision
from foretell.cost.pipeline import saturation
from foretell.errors import InputError
from foretell.machine import Fleet, HardwareNode, load_fleet, load_hardware
from foretell.plan import Launch
from foretell.recipe import Adapter, Parallelism, Quantization, Recompute, TrainingRecipe
from foretell.recipe.optimizers import optimizer
from foretell.recipe.parallelism import Schedule, Sharding, parse_layout
from foretell.recipe.profiles import profile
from foretell.validation import MAX_SEQUENCE

if TYPE_CHECKING:
    from foretell.arch import Workload
    from foretell.recipe.profile import Profile

__all__ = ["Request", "request"]

_DEFAULT_SEQUENCE: Final = 4096
_GPUS_PER_NODE: Final = 8
_SCOPES: Final = ("layer", "uniform", "block", "op", "modules", "attention")
_GRAPHS: Final = ("none", "partial", "layer", "full")
_OFFLOAD: Final = ("activations", "grads", "optimizer", "params")
_SHARDED: Final = {
    "fsdp1": 3,
    "fsdp2": 3,
    "simplefsdp": 3,
    "megatron-fsdp": 3,
    "distopt": 1,
    "ddp": 0,
    "none": 0,
}
"""ZeRO stage that a sharding means where none is given."""

Options = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A launch, what was assumed for it, and notes on what was given."""

    launch: Launch
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    fleet: Fleet | None = None
    """The system that was named, with its network."""


class _Assumed(list[str]):
    """What was not given and is taken so."""

    def take(self, value: Any, default: Any, text: str) -> Any:  # whatever the option holds
        """Return the value, or the default with a line that says so."""
        if value is not None:
            return value
        self.append(text)
        return default


def request(model: str, options: Options) -> Request:
    """Build the launch that the options describe; InputError names the option that cannot be used."""
    assumed, notes = _Assumed(), list[str]()
    hardware, fleet = _machine(options)
    framework = profile(assumed.take(options["framework"], "generic", "generic accounting (no --framework)"))
    par = _parallelism(options, framework, assumed, fleet)
    workload = load_model(model)
    seq_len, encoder = _sequence(options, workload, assumed, notes)
    micro_batch, grad_accum = _batch(options, par, assumed)
    usual = usual_precision(hardware)
    mixed = f"{usual} mixed precision" + ("" if usual == "bf16" else f" ({hardware.name} has no bf16)")
    recipe = TrainingRecipe(
        micro_batch=micro_batch,
        seq_len=seq_len,
        encoder_seq_len=encoder,
        grad_accum=grad_accum,
        framework=framework.name,
        precision=assumed.take(_word(options["precision"]), usual, mixed),
        optimizer=optimizer(assumed.take(options["optimizer"], "adamw", "AdamW")).name,
        optimizer_impl=one_of(options["optimizer_impl"], "optimizer_impl", ("fused", "foreach", "forloop")),  # type: ignore[arg-type]
        optimizer_in_backward=bool(options["optimizer_in_backward"]),
        recompute=_recompute(options, assumed),
        attention=_word(options["attention"]),
        loss=_word(options["loss"]),
        compile=bool(options["compile"]),
        dropout=real(options["dropout"], "dropout", maximum=1.0),
        adapter=_adapter(options, assumed),
        quantization=_quantization(options),
        offload=_offload(options),
        trainable_fraction=_share(options["trainable_fraction"]),
        expandable_segments=options["expandable_segments"],
        date=month(options.get("software_date"), "software_date"),
        cuda_graphs=one_of(options.get("cuda_graphs"), "cuda_graphs", _GRAPHS) or "none",  # type: ignore[arg-type]
        tp_comm_overlap=options.get("tp_overlap"),
        dispatcher=one_of(options.get("dispatcher"), "dispatcher", ("alltoall", "flex")),  # type: ignore[arg-type]
    )
    node = whole(options["gpus_per_node"], "gpus_per_node")
    launch = Launch(
        workload=workload,
        hardware=hardware,
        recipe=recipe,
        par=par,
        headroom=fraction(options["headroom"], "headroom") if options["headroom"] is not None else 0.10,
        gpus_per_node=node or (fleet.node.accelerators_per_node if fleet else _node(hardware)),
        given=frozenset(name for name, value in options.items() if value is not None),
    )
    return Request(launch, tuple(assumed), tuple(notes), fleet)


def _machine(options: Options) -> tuple[HardwareNode, Fleet | None]:
    """Return the accelerator, and the system where one is named; only verbs that ask for a network have systems."""
    gpu, system = options["gpu"], options.get("system")
    if system is None:
        if gpu is None:
            hint = "For instance: --gpu h100. All names: foretell catalog list hardware"
            raise InputError("is missing: say which accelerator the run is to use", field="gpu", hint=hint)
        return load_hardware(gpu), None
    fleet = load_fleet(system)
    held = fleet.accelerator
    if gpu is not None and load_hardware(gpu).id != held.id:
        raise InputError(f"is not the accelerator of {fleet.name}, which holds {held.id}", field="gpu", value=gpu)
    return held, fleet


def _parallelism(options: Options, framework: Profile, assumed: _Assumed, fleet: Fleet | None) -> Parallelism:
    """Complete the degrees: the number of accelerators is their product."""
    given = {key: whole(options[key], key) for key in ("gpus", "dp", "tp", "pp", "cp", "ep", "etp", "vpp")}
    tp, pp, cp = (given[key] or 1 for key in ("tp", "pp", "cp"))
    rest = tp * pp * cp
    gpus, dp = given["gpus"], given["dp"]
    if gpus is not None and gpus % rest:
        problem = f"is no multiple of tp x pp x cp = {tp} x {pp} x {cp} = {rest}"
        raise InputError(problem, field="gpus", value=gpus, allowed=f"{rest}, {2 * rest}, {3 * rest} ...")
    if gpus is not None and dp is not None and gpus != dp * rest:
        problem = f"is not dp x tp x pp x cp = {dp} x {tp} x {pp} x {cp} = {dp * rest}"
        raise InputError(problem, field="gpus", value=gpus, hint="Leave out --gpus or --dp")
    if gpus is None and dp is None and fleet is not None and fleet.total_accelerators % rest == 0:
        gpus = fleet.total_accelerators
        assumed.append(f"{gpus} GPUs, all of {fleet.name}")
    elif gpus is None and dp is None:
        assumed.append("1 GPU" if rest == 1 else f"{rest} GPUs, one replica")
    sharding = one_of(options["sharding"], "sharding", get_args(Sharding))
    zero = whole(options["zero"], "zero", minimum=0, maximum=3)
    if zero is None:
        zero = _SHARDED.get(sharding or "", framework.default_zero)
        assumed.append(f"ZeRO stage {zero}")
    return Parallelism(
        dp=dp or (gpus or rest) // rest,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=given["ep"] or 1,
        etp=given["etp"],
        vpp=given["vpp"] or 1,
        sp=options["sp"],
        zero=zero,
        sharding=sharding,  # type: ignore[arg-type]
        hsdp_replicas=whole(options["hsdp_replicas"], "hsdp_replicas") or 1,
        schedule=one_of(options["schedule"], "schedule", get_args(Schedule)),  # type: ignore[arg-type]
        layout=_layout(options["pp_layout"]),
    )


def _layout(text: str | None) -> tuple[int, ...] | None:
    """Return the layers of each chunk, from numbers or from Megatron-Core's letters."""
    if text is None:
        return None
    if "|" not in text:
        return tuple(whole(part, "pp_layout") or 0 for part in listed(text, "pp_layout"))
    chunks, predicting = parse_layout(text)
    if predicting:
        raise InputError("has prediction layers (m), which have no option here", field="pp_layout", value=text)
    return chunks


def _batch(options: Options, par: Parallelism, assumed: _Assumed) -> tuple[int, int]:
    """Return (micro-batch, passes per step); the global batch is their product with data parallelism."""
    dp = par.dp
    micro, passes, whole_batch = (whole(options[key], key) for key in ("micro_batch", "grad_accum", "global_batch"))
    if whole_batch is None:
        if micro is None:
            assumed.append("micro-batch 1")
        if passes is None and par.pp > 1:
            passes = _filling(par)
            assumed.append(f"{passes} micro-batches a step, which fill the pipeline")
        return micro or 1, passes or 1
    if micro is None and passes is None:
        micro = 1
        assumed.append("micro-batch 1")
    known = dp * (micro or 1) * (passes or 1)
    parts = f"dp {dp}" + (f" x micro-batch {micro}" if micro else "") + (f" x grad-accum {passes}" if passes else "")
    if whole_batch % known:
        problem = f"is no multiple of {parts} = {known}"
        raise InputError(problem, field="global_batch", value=whole_batch, allowed=f"{known}, {2 * known} ...")
    left = whole_batch // known
    if micro is not None and passes is not None and left != 1:
        problem = f"is not {parts} = {known}"
        raise InputError(problem, field="global_batch", value=whole_batch, hint="Leave out one of the three")
    return micro or left, passes or left


def _filling(par: Parallelism) -> int:
    """Return the fewest micro-batches, a multiple of the stages, with which every stage keeps as many as it ever does.

    Interleaved schedules take multiples of the stages only (Megatron-Core ``schedules.py``).
    """
    schedule = par.schedule or ("interleaved-1f1b" if par.vpp > 1 else "1f1b")
    most = saturation(schedule, par.pp, par.vpp) or par.pp
    return -(-max(most, par.pp) // par.pp) * par.pp


def _sequence(options: Options, workload: Workload, assumed: _Assumed, notes: list[str]) -> tuple[int, int | None]:
    """Return (tokens of a sample, of an encoder input); where samples are padded the longest decides."""
    seq_len = whole(options["seq_len"], "seq_len", maximum=MAX_SEQUENCE)
    longest = whole(options["max_sample_len"], "max_sample_len", maximum=MAX_SEQUENCE)
    encoder = whole(options["encoder_seq_len"], "encoder_seq_len", maximum=MAX_SEQUENCE)
    architecture = workload.architecture
    if not architecture.reads_tokens:
        for name, value in (("seq_len", seq_len), ("max_sample_len", longest), ("encoder_seq_len", encoder)):
            if value is not None:
                kind = f"{workload.name}, a {architecture.family} model"
                problem = f"has no meaning for {kind}: its input has a fixed size"
                raise InputError(problem, field=name, value=value, hint="Leave it out")
        return 1, None
    if encoder is not None and architecture.family not in ("encoder-decoder", "audio", "multimodal"):
        problem = f"has no meaning for {workload.name}: it has no encoder beside the trunk"
        raise InputError(problem, field="encoder_seq_len", value=encoder, hint="Use --seq-len")
    limit = architecture.max_positions
    if seq_len is None:
        seq_len = min(_DEFAULT_SEQUENCE, limit or _DEFAULT_SEQUENCE)
        assumed.append(f"sequence of {seq_len}" + (" (the model's limit)" if limit and limit < _DEFAULT_SEQUENCE else ""))
    if longest is None:
        return seq_len, encoder
    if options["packing"] is not False:
        if options["packing"] is None:
            problem = "matters only where samples are padded"
            raise InputError(problem, field="max_sample_len", value=longest, hint="Add --no-packing")
        notes.append(f"packed: every pass has {seq_len} tokens a sample; the longest sample does not matter")
        return seq_len, encoder
    used = min(seq_len, longest)
    notes.append(f"padded: the longest sample decides, {used} tokens" + (" (cut)" if longest > seq_len else ""))
    return used, encoder


def _recompute(options: Options, assumed: _Assumed) -> Recompute:
    """Return what is checkpointed."""
    mode = one_of(options["recompute"], "recompute", ("none", "selective", "full"))
    scope = one_of(options["recompute_scope"], "recompute_scope", _SCOPES)
    layers = whole(options["recompute_layers"], "recompute_layers")
    modules = listed(options["recompute_modules"], "recompute_modules")
    if mode in (None, "none"):
        for name, value in (
            ("recompute_scope", scope),
            ("recompute_layers", layers),
            ("recompute_modules", modules or None),
        ):
            if value is not None:
                problem = "says what to recompute, and nothing is"
                raise InputError(problem, field=name, value=value, hint="Add --recompute full or selective")
    mode = assumed.take(mode, "none", "no recomputation")
    return Recompute(mode=mode, scope=scope, layers=layers, modules=modules)


def _adapter(options: Options, assumed: _Assumed) -> Adapter | None:
    """Return the low-rank adapters; they are asked for by their rank."""
    rank = whole(options["lora_rank"], "lora_rank", maximum=2**20)
    if rank is None:
        for name in ("lora_targets", "lora_kind", "lora_dropout", "modules_to_save"):
            if options[name] is not None:
                problem = "describes adapters, and there are none"
                raise InputError(problem, field=name, value=options[name], hint="Add --lora-rank 16")
        return None
    targets = listed(options["lora_targets"], "lora_targets")
    return Adapter(
        kind=one_of(options["lora_kind"], "lora_kind", ("lora", "dora")) or "lora",  # type: ignore[arg-type]
        rank=rank,
        targets=assumed.take(targets or None, ("all-linear",), "adapters on every matrix but the head"),
        dropout=real(options["lora_dropout"], "lora_dropout", maximum=1.0),
        modules_to_save=listed(options["modules_to_save"], "modules_to_save"),
    )


def _quantization(options: Options) -> Quantization | None:
    """Return the format of a frozen base."""
    kind = one_of(options["quantization"], "quantization", ("nf4", "fp4", "int8", "none"))
    double = bool(options["double_quant"])
    if kind in (None, "none"):
        if double:
            raise InputError("needs a quantised base", field="double_quant", value=True, hint="Add --quantization nf4")
        return None
    return Quantization(kind=kind, double=double)  # type: ignore[arg-type]


def _offload(options: Options) -> frozenset[str]:
    """Return what is kept in host memory."""
    parts = listed(options["offload"], "offload")
    return frozenset(name for part in parts if (name := one_of(part, "offload", _OFFLOAD)) is not None)


def _share(text: str | None) -> float:
    """Return the share of the parameters that trains."""
    value = 1.0 if text is None else real(text, "trainable_fraction", maximum=1.0)
    return 1.0 if value is None else value


def _word(text: str | None) -> str | None:
    """Return a name as the rooms below spell it."""
    return None if text is None else text.strip().casefold()


def _node(hardware: HardwareNode) -> int:
    """Return the accelerators of a node: those that the fast link joins, if that is a node's number."""
    domain = hardware.link.domain_size if hardware.link else None
    return domain if domain is not None and 1 < domain <= 16 else _GPUS_PER_NODE

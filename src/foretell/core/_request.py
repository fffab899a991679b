"""The settings of the memory solver: their names, defaults, and the recipe and parallelism that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretell.errors import CombinationError, InputError
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe
from foretell.validation import choice, positive_int

__all__ = ["DEFAULTS", "GivenFloat", "GivenInt", "GivenText", "build", "micro_batch_of", "untouched"]


class GivenInt(int):
    """A default: equal to its number, but known not to come from the user."""


class GivenFloat(float):
    """A default: equal to its number, but known not to come from the user."""


class GivenText(str):
    """A default: equal to its text, but known not to come from the user."""

    __slots__ = ()


DEFAULTS: Final[dict[str, Any]] = {
    # the reference's
    "batch_size": None,
    "seq_len": GivenInt(2048),
    "precision": GivenText("fp16"),
    "optimizer": GivenText("adam"),
    "activation_checkpointing": GivenText("selective"),
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "zero_stage": GivenInt(0),
    "gradient_accumulation_steps": GivenInt(1),
    "trainable_fraction": 1.0,
    "communication_buffer_fraction": GivenFloat(0.05),
    # ours
    "micro_batch": None,
    "cp_size": 1,
    "etp_size": None,
    "vpp_size": 1,
    "framework": "generic",
    "sequence_parallel": None,
    "sharding": None,
    "hsdp_replicas": 1,
    "schedule": None,
    "pp_layout": None,
    "reshard": "default",
    "attention": None,
    "loss": None,
    "recompute_scope": None,
    "recompute_layers": None,
    "recompute_modules": (),
    "optimizer_impl": None,
    "compile": False,
    "dropout": None,
    "lora_rank": None,
    "lora_targets": (),
    "quantization": None,
    "offload": (),
    "encoder_seq_len": None,
    "expandable_segments": None,
}
"""Every setting, in the order of `TrainingMemoryModel.solve`, with its default."""

_CHECKPOINTING = ("none", "selective", "full")
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8"}
_SCOPES = {"torchtitan": "op"}
"""What "selective" means where the framework has a meaning of its own; elsewhere the attention core."""


def micro_batch_of(batch: object, dp: int, accum: int, micro: object = None) -> tuple[int, int]:
    """Return (micro-batch, micro-batches a step) of a global batch, or an InputError where it is not whole.

    >>> micro_batch_of(64, 8, 4), micro_batch_of(64, 8, 1, micro=2)
    ((2, 4), (2, 4))
    """
    total = positive_int(batch, "batch_size")
    if micro is not None:
        size = positive_int(micro, "micro_batch")
        steps, rest = divmod(total, dp * size)
        if rest or accum not in (1, steps):
            raise CombinationError(
                f"is not dp x micro-batch x accumulation = {dp} x {size} x {accum if accum != 1 else 'whole'}",
                field="batch_size",
                value=total,
            )
        return size, steps
    if total % (dp * accum):
        raise InputError(
            f"must be a multiple of dp x gradient_accumulation_steps = {dp} x {accum}: "
            "it is the global batch, and the micro-batch must be whole",
            field="batch_size",
            value=total,
        )
    return total // (dp * accum), accum


def build(given: Mapping[str, Any]) -> tuple[TrainingRecipe, Parallelism]:
    """Return the recipe and the parallelism that complete settings (see DEFAULTS) describe."""
    chosen = profile(given["framework"])
    mode = choice(given["activation_checkpointing"], "activation_checkpointing", _CHECKPOINTING)
    scope = given["recompute_scope"]
    if scope is None and mode == "selective":
        scope = "modules" if given["recompute_modules"] else _SCOPES.get(chosen.name, "attention")
    dp = positive_int(given["dp_size"], "dp_size")
    accum = positive_int(given["gradient_accumulation_steps"], "gradient_accumulation_steps")
    micro, accum = micro_batch_of(given["batch_size"], dp, accum, given["micro_batch"])
    zero, share = given["zero_stage"], given["communication_buffer_fraction"]
    if isinstance(zero, GivenInt):
        zero = chosen.default_zero
    if isinstance(share, GivenFloat):
        share = float(share) if chosen.name == "generic" else None
    recipe = TrainingRecipe(
        micro_batch=micro,
        seq_len=1 if given["seq_len"] is None else given["seq_len"],
        encoder_seq_len=given["encoder_seq_len"],
        grad_accum=accum,
        framework=chosen.name,
        precision=_precision(given["precision"]),
        optimizer=str(given["optimizer"]) if isinstance(given["optimizer"], GivenText) else given["optimizer"],
        optimizer_impl=given["optimizer_impl"],
        recompute=Recompute(
            mode,  # type: ignore[arg-type]  # choice() gives one of them
            scope,
            given["recompute_layers"],
            _names(given["recompute_modules"], "recompute_modules"),
        ),
        attention=given["attention"],
        loss=given["loss"],
        compile=given["compile"],
        dropout=given["dropout"],
        adapter=_adapter(given),
        quantization=_quantization(given["quantization"]),
        offload=frozenset(_names(given["offload"], "offload")),
        trainable_fraction=given["trainable_fraction"],
        communication_buffer_fraction=share,
        expandable_segments=given["expandable_segments"],
    )
    par = Parallelism(
        dp=dp,
        tp=positive_int(given["tp_size"], "tp_size"),
        pp=positive_int(given["pp_size"], "pp_size"),
        cp=positive_int(given["cp_size"], "cp_size"),
        ep=positive_int(given["ep_size"], "ep_size"),
        etp=given["etp_size"],
        vpp=positive_int(given["vpp_size"], "vpp_size"),
        sp=given["sequence_parallel"],
        zero=zero,
        sharding=given["sharding"],
        hsdp_replicas=given["hsdp_replicas"],
        schedule=given["schedule"],
        layout=_layout(given["pp_layout"]),
        reshard=given["reshard"],
    )
    return recipe, par


def untouched(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a run took from the defaults of the reference's signature, as a reader would say it."""
    accum, text = given["gradient_accumulation_steps"], (GivenText, GivenInt)
    said = (
        ("seq_len", f"sequence of {given['seq_len']}"),
        ("precision", f"{given['precision']} mixed precision"),
        ("optimizer", f"optimizer {given['optimizer']}"),
        ("activation_checkpointing", f"{given['activation_checkpointing']} activation checkpointing"),
        ("gradient_accumulation_steps", f"gradient_accumulation_steps {accum}" if given["micro_batch"] is None else ""),
    )
    return tuple(words for name, words in said if words and isinstance(given[name], text))


def _layout(layers: object) -> tuple[int, ...] | None:
    """Return the layers of each pipeline stage as a tuple."""
    if layers is None:
        return None
    if isinstance(layers, str) or not hasattr(layers, "__iter__"):
        raise InputError("must list the layers of each stage", field="pp_layout", value=layers)
    return tuple(layers)


def _adapter(given: Mapping[str, Any]) -> Adapter | None:
    rank, targets = given["lora_rank"], given["lora_targets"]
    if rank is None:
        if targets:
            raise InputError("needs lora_rank", field="lora_targets", value=targets)
        return None
    names = _names(targets, "lora_targets")
    return Adapter(rank=positive_int(rank, "lora_rank"), targets=names or ("all-linear",))


def _names(value: object, field: str) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise InputError("must be a name or several", field=field, value=value)


def _precision(name: object) -> str:
    """Return a precision's name under its usual spelling ("BFloat16" is "bf16")."""
    if not isinstance(name, str):
        raise InputError("must be a name", field="precision", value=name)
    key = name.strip().casefold()
    return _PRECISIONS.get(key, key)


def _quantization(kind: object) -> Quantization | None:
    if kind is None or isinstance(kind, Quantization):
        return kind
    name = choice(kind, "quantization", ("nf4", "nf4-dq", "fp4", "int8"))
    return Quantization("nf4" if name == "nf4-dq" else name, double=name == "nf4-dq")  # type: ignore[arg-type]

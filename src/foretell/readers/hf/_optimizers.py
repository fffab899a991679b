"""Optimizers by the names that transformers and DeepSpeed give them, as the optimizers that are modelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretell.readers._document import Found
    from foretell.readers._reading import Builder, Effect

__all__ = ["DEEPSPEED_OPTIMIZERS", "OPTIMIZERS", "Optim", "optim_arguments", "optimizer_settings", "optimizer_spelled"]


@dataclass(frozen=True, slots=True)
class Optim:
    """One name: what it is here, and in what it differs."""

    name: str
    impl: str | None = None
    """fused (one kernel, no copies), foreach or forloop."""
    states: str | None = None
    """Format of its states, where it does not follow the parameters'."""
    in_backward: bool = False
    effect: Effect | None = None
    why: str = ""
    """How it is counted, or (with an effect) what is left out."""


_ACCUMULATOR: Final = "one state an element, counted as Adagrad's"
_THREE: Final = "three states an element, counted as AMSGrad's"
_TWO: Final = "two states an element, counted as AdamW's"
_8BIT: Final = "its states have 8 bits, where 32 are counted"

OPTIMIZERS: Final[Mapping[str, Optim]] = {
    "adamw_torch": Optim("adamw", "foreach"),
    "adamw_torch_fused": Optim("adamw", "fused"),
    "adamw_apex_fused": Optim("adamw", "fused"),
    "adamw_hf": Optim("adamw", "forloop"),
    "adamw_torch_xla": Optim("adamw", "fused", effect="both", why="runs on a TPU"),
    "adamw_torch_npu_fused": Optim("adamw", "fused", effect="both", why="runs on an Ascend NPU"),
    "adamw_anyprecision": Optim("adamw", "foreach", effect="memory", why="its arguments choose the formats of its states"),
    "adamw_torch_4bit": Optim("adamw4bit", "fused"),
    "adamw_torch_8bit": Optim("adamw8bit", "fused"),
    "adafactor": Optim("adafactor", "forloop"),
    "sgd": Optim("sgd", "foreach"),
    "adagrad": Optim("adagrad", "foreach"),
    "rmsprop": Optim("adagrad", "foreach", why=_ACCUMULATOR),
    "adamw_bnb_8bit": Optim("adamw8bit", "fused"),
    "adamw_8bit": Optim("adamw8bit", "fused"),
    "paged_adamw": Optim("paged-adamw", "fused", states="fp32"),
    "paged_adamw_32bit": Optim("paged-adamw", "fused", states="fp32"),
    "paged_adamw_8bit": Optim("paged-adamw8bit", "fused"),
    "lion_32bit": Optim("lion", "fused", states="fp32"),
    "lion_8bit": Optim("lion", "fused", effect="less-memory", why=_8BIT),
    "paged_lion_32bit": Optim("lion", "fused", states="fp32", effect="less-memory", why="its states can move to the host"),
    "paged_lion_8bit": Optim("lion", "fused", effect="less-memory", why=_8BIT),
    "ademamix": Optim("amsgrad", "fused", states="fp32", why=_THREE),
    "ademamix_8bit": Optim("amsgrad", "fused", effect="less-memory", why=_8BIT),
    "paged_ademamix_32bit": Optim("amsgrad", "fused", states="fp32", effect="less-memory", why="its states can move to the host"),
    "paged_ademamix_8bit": Optim("amsgrad", "fused", effect="less-memory", why=_8BIT),
    "rmsprop_bnb": Optim("adagrad", "fused", states="fp32", why=_ACCUMULATOR),
    "rmsprop_bnb_32bit": Optim("adagrad", "fused", states="fp32", why=_ACCUMULATOR),
    "rmsprop_bnb_8bit": Optim("adagrad", "fused", effect="less-memory", why=_8BIT),
    "galore_adamw": Optim("galore-adamw", "foreach"),
    "galore_adamw_8bit": Optim("galore-adamw8bit", "fused"),
    "galore_adafactor": Optim("galore-adamw", "forloop", effect="less-memory", why="factored moments, where two are counted"),
    "galore_adamw_layerwise": Optim("galore-adamw", "foreach", in_backward=True),
    "galore_adamw_8bit_layerwise": Optim("galore-adamw8bit", "fused", in_backward=True),
    "galore_adafactor_layerwise": Optim(
        "galore-adamw", "forloop", in_backward=True, effect="less-memory", why="factored moments, where two are counted"
    ),
    "apollo_adamw": Optim("galore-adamw", "foreach", effect="memory", why="counted as GaLore; its projections are drawn anew"),
    "apollo_adamw_layerwise": Optim(
        "galore-adamw", "foreach", in_backward=True, effect="memory", why="counted as GaLore; its projections are drawn anew"
    ),
    "lomo": Optim("lomo"),
    "adalomo": Optim("adalomo"),
    "grokadamw": Optim("amsgrad", "forloop", why=_THREE),
    "schedule_free_adamw": Optim("adamw", "foreach", why=_TWO),
    "schedule_free_radam": Optim("adamw", "foreach", why=_TWO),
    "schedule_free_sgd": Optim("sgdm", "foreach", why="one state an element, counted as momentum"),
    "stable_adamw": Optim("adamw", "foreach", why=_TWO),
}
"""``optim`` (transformers 5.24.0 training_args.py ``OptimizerNames``, trainer_optimizer.py; ``adamw_hf`` and
``adamw_apex_fused`` until 5).  bitsandbytes keeps its 32-bit states in fp32 (bitsandbytes optim/optimizer.py)."""

DEEPSPEED_OPTIMIZERS: Final[Mapping[str, Optim]] = {
    "adam": Optim("adamw", "fused"),
    "adamw": Optim("adamw", "fused"),
    "fusedadam": Optim("adamw", "fused"),
    "deepspeedcpuadam": Optim("adamw", "fused"),
    "lamb": Optim("adamw", "fused", why=_TWO),
    "onebitadam": Optim("adamw", "fused", effect="both", why="1-bit Adam keeps error feedback and compresses its exchanges"),
    "zerooneadam": Optim("adamw", "fused", effect="both", why="0/1 Adam keeps error feedback and compresses its exchanges"),
    "onebitlamb": Optim("adamw", "fused", effect="both", why="1-bit LAMB keeps error feedback and compresses its exchanges"),
    "muadam": Optim("adamw", "foreach", why=_TWO),
    "muadamw": Optim("adamw", "foreach", why=_TWO),
    "musgd": Optim("sgdm", "foreach"),
    "lion": Optim("lion", "fused"),
    "muon": Optim("muon", "foreach"),
    "adagrad": Optim("adagrad", "foreach"),
    "sgd": Optim("sgd", "foreach"),
    "rmsprop": Optim("adagrad", "foreach", why=_ACCUMULATOR),
}
"""``optimizer.type`` (deepspeed/runtime/config.py ``DEEPSPEED_OPTIMIZERS``, engine.py ``_configure_basic_optimizer``, which
takes other names from torch.optim)."""

_SPELLED: Final = {
    "adamw8bit": "adamw_bnb_8bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "lion": "lion_32bit",
    "adamw": "adamw_torch_fused",
}


def optim_arguments(found: Found | None) -> dict[str, str]:
    """Return ``optim_args`` ("rank=64, update_proj_gap=100") as words."""
    if found is None:
        return {}
    out = dict[str, str]()
    for part in found.text().replace(" ", "").split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise found.error("must be key=value pairs with commas between them", allowed="rank=128, scale=0.25")
        out[key] = value
    return out


def optimizer_settings(b: Builder, found: Found, arguments: Found | None = None) -> None:
    """Take transformers' ``optim``, with its ``optim_args``."""
    made: Optim = found.choice(OPTIMIZERS)
    taken(b, found, made)
    given = optim_arguments(arguments)
    if made.name == "sgd" and float_of(given.get("momentum")) > 0.0:
        b.set("optimizer", "sgdm", found)
    if arguments is not None and made.name.startswith("galore") and given.get("rank", "128") != "128":
        b.doubt(arguments, "memory", "moments are counted in a projection of rank 128")


def float_of(text: str | None) -> float:
    """Return a number, 0 for anything else."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def taken(b: Builder, found: Found, made: Optim) -> None:
    """Set what an optimizer is."""
    before = b.settings.get("optimizer")
    for name in ("optimizer_impl", "optim_dtype", "optimizer_in_backward"):
        if before is not None and name in b.settings and b.settings[name].origin == before.origin:
            del b.settings[name]
    b.set("optimizer", made.name, found, made.why if made.effect is None else "")
    b.set("optimizer_impl", made.impl, found)
    b.set("optim_dtype", made.states, found)
    if made.in_backward:
        b.set("optimizer_in_backward", True, found)
    if made.effect is not None:
        b.doubt(found, made.effect, f"{found.said}: {made.why}")


def optimizer_spelled(name: str) -> str | None:
    """Return transformers' name of an optimizer, or None where it has none that is the same."""
    return _SPELLED.get(name)

"""How many switches a model leaves time for, and which of them are worth it."""

from __future__ import annotations

from foretell.core.forecast import Forecast
from foretell.plan.launch import Launch
from foretell.plan.switches import Switch

__all__ = ["LEAST", "METHOD", "Tries", "fold_of"]

_OPERATORS = 800
"""Operators that may be folded for advice, at 0.1 to 0.2 ms each."""
LEAST = 3
"""Folds that are made however large the model."""
METHOD = 5
"""Rank from which on a switch changes what is trained or bought: never put together with others."""


class Tries:
    """Counts operators that forecasts fold, so that advice on a model of many different layers stays quick."""

    def __init__(self, launch: Launch) -> None:
        self.operators = sum(len(block.ops) for block, _ in launch.workload.architecture.blocks())
        self.most = max(LEAST, _OPERATORS // self.operators)
        """Folds that are affordable."""
        self.known = {fold_of(launch)}

    def costs(self, launch: Launch) -> int:
        """Return the folds that a forecast would add: none where only sizes differ from one that was made."""
        if fold_of(launch) in self.known:
            return 0
        return 1 if launch.recipe.adapter is None else 2

    def take(self, launch: Launch) -> bool:
        """Whether a forecast of a launch is still affordable; if so, it is counted."""
        cost = self.costs(launch)
        if cost > self.most:
            return False
        self.most -= cost
        self.known.add(fold_of(launch))
        return True

    def affordable(self, switches: list[Switch], now: Forecast) -> list[Switch]:
        """Return the switches that promise most, as many as can be afforded, in their own order."""
        left = self.most
        chosen: list[Switch] = []
        for switch in sorted(switches, key=lambda switch: (switch.rank >= METHOD, -promise(switch, now))):
            cost = self.costs(switch.launch)
            if cost <= left:
                left -= cost
                self.known.add(fold_of(switch.launch))
                chosen.append(switch)
        ids = {id(switch) for switch in chosen}
        return [switch for switch in switches if id(switch) in ids]


def fold_of(launch: Launch) -> tuple[object, object]:
    """Return what of a launch decides the fold: all but the sizes."""
    recipe, par = launch.recipe, launch.par
    dp = par.dp if par.zero == 3 and launch.framework.sharding == "deepspeed" else min(par.dp, 2)  # its sub-groups
    return (
        recipe.with_(micro_batch=1, seq_len=1, grad_accum=min(recipe.grad_accum, 2)),
        par.with_(dp=dp, tp=min(par.tp, 2)),
    )


_PROMISE: dict[str, tuple[tuple[str, float], ...]] = {
    "--loss": (("logits_and_loss", 0.7), ("activation_gradients", 0.3)),
    "--expandable-segments": (("allocator_slack", 0.7),),
    "--attention": (("activations", 0.5),),
    "--sp": (("activations", 0.5),),
    "--micro-batch": (("activations", 0.9),),
    "--zero": (("optimizer_state", 0.8), ("gradients", 0.5), ("weights", 0.3)),
    "--compile": (("activations", 0.2),),
    "--optimizer-impl": (("optimizer_workspace", 1.0),),
    "--recompute": (("activations", 0.3),),
    "--recompute full": (("activations", 0.9),),
    "--optimizer": (("optimizer_state", 0.5),),
    "--offload": (("optimizer_state", 1.0),),
    "--precision": (("optimizer_state", 0.6),),
    "--tp": (("optimizer_state", 0.5), ("gradients", 0.5), ("weights", 0.5), ("activations", 0.3)),
    "--gpus": (("optimizer_state", 0.4), ("gradients", 0.4), ("weights", 0.4)),
    "--pp": (("optimizer_state", 0.4), ("gradients", 0.4), ("weights", 0.4)),
    "--seq-len": (("activations", 0.5), ("logits_and_loss", 0.5)),
    "--lora-rank": (("optimizer_state", 1.0), ("gradients", 1.0)),
    "--quantization": (("weights", 0.6),),
}
"""First flag of a switch -> (term, share of it that may go away): which switches are worth the time, no more."""


def promise(switch: Switch, now: Forecast) -> float:
    """Return the bytes that a switch may save at best."""
    parts = _PROMISE.get("--recompute full" if switch.flags.get("--recompute") == "full" else next(iter(switch.flags)), ())
    return sum(share * now.breakdown.get(term, 0.0) for term, share in parts)

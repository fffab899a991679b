"""Options written in the keys of a torchtitan file, or as its flags.  Source as in :mod:`foretell.readers.torchtitan._run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.readers._reading import Change, Spell, Value
    from foretell.readers.torchtitan._run import Run

__all__ = ["spelling"]

_DEGREES: Final = {
    "tp": "tensor_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
    "hsdp_replicas": "data_parallel_replicate_degree",
}


def spelling(run: Run) -> Spell:
    """Return what writes an option."""
    return _Spelling(run).spell


@dataclass(frozen=True)
class _Spelling:
    run: Run

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        word = str(value).casefold() if isinstance(value, bool) else value
        if self.run.config is not None or self.run.b.degree("pp") > 1:
            return None
        if name in _DEGREES:
            return [self._change(f"{self._section(_DEGREES[name])}.{_DEGREES[name]}", int(word))]
        if name in ("micro_batch", "grad_accum", "seq_len"):
            return self._batch(name, int(word))
        if name == "zero" and word in ("2", "3"):
            return [self._change("parallelism.fsdp_reshard_after_forward", "never" if word == "2" else "default")]
        if name == "offload":
            states = {*word.split(",")} == {"params", "grads", "optimizer"}
            return [self._change("training.enable_cpu_offload", value=True)] if states else None
        if name == "compile":
            return self._compile(word)
        if name == "precision" and word in ("bf16-true", "bf16"):
            return [self._change("training.dtype", "bfloat16" if word == "bf16-true" else "float32")]
        return self._recompute(word) if name == "recompute" else None

    def _batch(self, name: str, value: int) -> list[Change] | None:
        """Passes follow from the global batch (since 2025-06, 8570415c3); without one it is written as it was."""
        b, values = self.run.b, self.run.values
        old = values.has("training.batch_size")
        if any(values.has(f"training.{key}") for key in ("num_tokens_per_microbatch_per_dp_rank", "max_context_length")):
            return None
        if name == "micro_batch":
            return [self._change("training.batch_size" if old else "training.local_batch_size", value)]
        if name == "seq_len":
            return [self._change("training.seq_len", value)]
        if b.given("global_batch") is not None:
            return []
        gpus, micro, passes = b.sources.given.get("gpus", b.given("gpus")), b.given("micro_batch"), b.given("grad_accum")
        rest = b.degree("tp") * b.degree("cp")
        if old or not isinstance(micro, int) or not isinstance(passes, int) or not str(gpus).isdecimal() or int(str(gpus)) % rest:
            return None
        return [self._change("training.global_batch_size", micro * passes * (int(str(gpus)) // rest))]

    def _compile(self, value: str) -> list[Change] | None:
        """Switch it; the loss stays as it is, which has to be said where it would follow."""
        old = self.run.values.has("training.compile")
        apart = value == "true" and self.run.b.given("loss") == "eager"
        if apart and self.run.values.has("compile.components"):
            return None
        parts = [self._change("compile.components", ("model",))] if apart else []
        return [self._change("training.compile" if old else "compile.enable", value == "true"), *parts]

    def _recompute(self, value: str) -> list[Change] | None:
        if value not in ("none", "full"):
            return None
        return [self._change("activation_checkpoint.mode", value)]

    def _section(self, key: str) -> str:
        places = ("parallelism", "experimental", "training")
        return next((section for section in places if self.run.values.has(f"{section}.{key}")), "parallelism")

    def _change(self, key: str, value: Value) -> Change:
        return self.run.values.change(key, value)

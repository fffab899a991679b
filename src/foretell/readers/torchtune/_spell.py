"""Options written in the keys of a torchtune file, or of its command.  Source as in :mod:`foretell.readers.torchtune._run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers.torchtune._run import OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from foretell.readers._reading import Change, Spell, Value
    from foretell.readers.torchtune._run import Run

__all__ = ["spelling"]

_OWN: Final = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
_GATED: Final = frozenset(("gate_proj", "up_proj", "down_proj"))
_OPTIMIZERS: Final = {
    "adamw": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD",
    "adagrad": "torch.optim.Adagrad",
    "adamw8bit": "torchao.optim.AdamW8bit",
    "adamw4bit": "torchao.optim.AdamW4bit",
    "adamwfp8": "torchao.optim.AdamWFp8",
    "paged-adamw": "bitsandbytes.optim.PagedAdamW",
    "paged-adamw8bit": "bitsandbytes.optim.PagedAdamW8bit",
}
_LOSSES: Final = {
    "chunked": "torchtune.modules.loss.CEWithChunkedOutputLoss",
    "linear-chunked": "torchtune.modules.loss.LinearCrossEntropyLoss",
}
_STATES: Final = frozenset(("grads", "optimizer", "params"))


def spelling(run: Run) -> Spell:
    """Return what writes an option."""
    return _Spelling(run).spell


@dataclass(frozen=True)
class _Spelling:
    run: Run

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the file cannot."""
        written: Callable[[str], list[Change] | None] | None = {
            "micro_batch": self._micro,
            "grad_accum": lambda word: [self._change("gradient_accumulation_steps", int(word))],
            "seq_len": lambda word: [self._change("tokenizer.max_seq_len", int(word), at="")],
            "packing": self._packing,
            "compile": self._compile,
            "precision": self._precision,
            "recompute": self._recompute,
            "offload": self._offload,
            "loss": self._loss,
            "optimizer": self._optimizer,
            "optimizer_in_backward": self._within,
            "lora_rank": lambda word: self._adapter("lora_rank", int(word)),
            "lora_targets": self._targets,
            "tp": lambda word: [self._change("tensor_parallel_dim", int(word), at="")],
            "cp": lambda word: [self._change("context_parallel_dim", int(word), at="")],
            "hsdp_replicas": lambda word: [self._change("data_parallel_replicate_dim", int(word), at="")],
            "zero": self._zero,
            "gpus": self._gpus,
        }.get(name)
        return None if written is None else written(str(value).casefold() if isinstance(value, bool) else value)

    def _change(self, key: str, value: Value | None, at: str | None = None) -> Change:
        return self.run.values.change(self.run.key(key) if at is None else key, value)

    def _there(self, key: str) -> bool:
        return self.run.values.has(self.run.key(key))

    def _micro(self, value: str) -> list[Change] | None:
        count = int(value)
        if self.run.kind == "dpo":
            return [self._change("batch_size", count // 2)] if count % 2 == 0 else None
        return [self._change("batch_size", count)] if self.run.kind in ("sft", "kd") else None

    def _packing(self, value: str) -> list[Change] | None:
        if self.run.values.get("dataset._component_") is None:
            return None
        return [self._change("dataset.packed", value == "true", at="")]

    def _compile(self, value: str) -> list[Change] | None:
        node = self.run.get("compile")
        return None if node is not None and not node.node.scalar else [self._change("compile", value == "true")]

    def _precision(self, value: str) -> list[Change] | None:
        word = {"bf16-true": "bf16", "bf16": "bf16", "fp32": "fp32"}.get(value)
        return None if word is None else [self._change("dtype", word, at="")]

    def _recompute(self, value: str) -> list[Change] | None:
        if value not in ("none", "full") or (value == "none" and self._offloaded()):
            return None
        others = [self._change("ac_mode", None)] if self._there("ac_mode") else []
        return [self._change("enable_activation_checkpointing", value == "full"), *others]

    def _offloaded(self) -> bool:
        given = self.run.b.given("offload")
        return isinstance(given, tuple) and "activations" in given

    def _offload(self, value: str) -> list[Change] | None:
        parts = frozenset(value.split(","))
        if parts - _STATES - {"activations"} or (parts & _STATES and not parts >= _STATES):
            return None
        if "activations" in parts and self.run.b.given("recompute") != "full":
            return None
        changes = [self._change("enable_activation_offloading", "activations" in parts)]
        if parts & _STATES or self._there("fsdp_cpu_offload"):
            changes.append(self._change("fsdp_cpu_offload", bool(parts & _STATES)))
        return changes

    def _loss(self, value: str) -> list[Change] | None:
        path = _LOSSES.get(value)
        return [self._change("loss._component_", path)] if path is not None and self.run.kind == "sft" else None

    def _optimizer(self, value: str) -> list[Change] | None:
        path = _OPTIMIZERS.get(value)
        if path is None:
            return None
        fused = path.startswith("torch.")
        unread = [name for name in ("fused", "foreach", "amsgrad") if self._there(f"optimizer.{name}")]
        changes = [self._change("optimizer._component_", path)]
        if fused and OPTIMIZERS[path].impl != self.run.b.given("optimizer_impl"):
            return [*changes, self._change("optimizer.fused", value=True)]
        return [*changes, *(self._change(f"optimizer.{name}", None) for name in unread if not fused)]

    def _within(self, value: str) -> list[Change] | None:
        if value != "true":
            return [self._change("optimizer_in_bwd", value=False)]
        clipped = [self._change("clip_grad_norm", None)] if self.run.get("clip_grad_norm") is not None else []
        return [self._change("optimizer_in_bwd", value=True), *clipped]

    def _adapter(self, key: str, value: Value) -> list[Change] | None:
        return [self._change(f"model.{key}", value, at="")] if self.run.adapters and self.run.kind != "ppo" else None

    def _targets(self, value: str) -> list[Change] | None:
        names = value.split(",") if value != "all-linear" else [*_OWN, *_GATED]
        gated, rest = _GATED & {*names}, [name for name in names if name not in _GATED and name != "lm_head"]
        if not self.run.adapters or gated not in (_GATED, frozenset()) or any(name not in _OWN for name in rest) or not rest:
            return None
        changes = [
            self._change("model.lora_attn_modules", tuple(_OWN[name] for name in rest), at=""),
            self._change("model.apply_lora_to_mlp", bool(gated), at=""),
        ]
        if "lm_head" in names or self.run.values.has("model.apply_lora_to_output"):
            changes.append(self._change("model.apply_lora_to_output", "lm_head" in names, at=""))
        return changes

    def _zero(self, value: str) -> list[Change] | None:
        return [self._change("fsdp_reshard_after_forward", value == "3")] if value in ("2", "3") and not self.run.alone else None

    def _gpus(self, value: str) -> list[Change] | None:
        node = self.run.values.get("nproc_per_node")
        if node is None or self.run.values.get("nnodes") is not None or int(value) > 8:
            return None
        return [self._change("nproc_per_node", int(value), at="")]

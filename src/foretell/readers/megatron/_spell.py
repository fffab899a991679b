"""Options written back as Megatron-LM's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change
from foretell.readers.megatron._args import ARGS

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Builder
    from foretell.readers.megatron._args import Args

__all__ = ["Writer"]

_VALUES: Final = {
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "seq_len": "seq_length",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "hsdp_replicas": "num_distributed_optimizer_instances",
    "max_num_batched_tokens": "inference_dynamic_batching_max_tokens",
    "max_model_len": "inference_max_seq_length",
    "block_size": "inference_dynamic_batching_block_size",
}
"""Option -> the argument that takes its value as it is."""
_WORDS: Final = {
    "attention": ("attention_backend", {"flash": "flash", "te": "auto", "eager": "unfused"}),
    "optimizer": ("optimizer", {"adamw": "adam", "sgdm": "sgd", "muon": "muon", "lion": "lion", "soap": "soap"}),
    "dispatcher": ("moe_token_dispatcher_type", {"alltoall": "alltoall", "flex": "flex"}),
}
"""Option -> the argument, and how it spells what the option takes."""
_FLAGS: Final = {"sp": "sequence_parallel", "tp_overlap": "tp_comm_overlap", "chunked_prefill": "enable_chunked_prefill"}


class Writer:
    """Spells options; a flag that is taken out is a key without a value."""

    def __init__(self, b: Builder, args: Args, main: Document) -> None:
        """Keep where arguments are written."""
        self.b, self.args, self.main = b, args, main
        self.block = f"{ARGS}." if main.form != "arguments" and main.at(ARGS) is not None else ""

    def __call__(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that make an option so."""
        if name in _VALUES:
            return self._valued(name, str(value))
        if name in _FLAGS:
            return self._flag(_FLAGS[name], on=value is True or str(value) == "true")
        if name in _WORDS:
            key, spelled = _WORDS[name]
            word = spelled.get(str(value))
            own = name != "attention" or self.args.on("use_flash_attn") is None
            return [self._change(key, word)] if word is not None and own else None
        made = getattr(self, f"_{name}", None)
        return None if made is None else made(str(value))

    # -- options that are several arguments, or none ---------------------------------------------------------
    def _valued(self, name: str, value: str) -> list[Change] | None:
        if not value.isdecimal():
            return None
        if name == "seq_len":
            longest = self.args.whole("max_position_embeddings")
            if longest is not None and int(value) > longest:
                return None  # positions are the model's: another model
        if name == "global_batch" and self.args.get("step_batch_size_schedule") is not None:
            return None
        return [self._change(_VALUES[name], int(value))]

    def _recompute_scope(self, value: str) -> list[Change] | None:
        """The mode brings ``uniform``, one layer at a time; modules are what selective means."""
        given = self.args.get("recompute_method")
        if value in ("modules", "layer") or (value == "uniform" and given is None):
            return []
        return [self._change("recompute_method", value)] if value in ("uniform", "block") and given is not None else None

    def _recompute_layers(self, value: str) -> list[Change] | None:
        given = self.args.get("recompute_num_layers")
        if given is None:
            return [] if value == "1" else None
        return [self._change("recompute_num_layers", int(value))] if value.isdecimal() else None

    def _grad_accum(self, _value: str) -> list[Change] | None:
        """Passes follow from the global batch; without one there is one pass."""
        return [] if self.args.get("global_batch_size") is not None else None

    def _zero(self, value: str) -> list[Change] | None:
        if self.args.on("use_megatron_fsdp", "use_custom_fsdp") is not None:
            words = {"0": "no_shard", "1": "optim", "2": "optim_grads", "3": "optim_grads_params"}
            return [self._change("data_parallel_sharding_strategy", words[value])] if value in words else None
        if self.args.on("use_torch_fsdp2") is not None or value not in ("0", "1"):
            return None
        if value == "0" and self.args.on("use_precision_aware_optimizer", "optimizer_cpu_offload") is not None:
            return None
        return self._flag("use_distributed_optimizer", on=value == "1")

    def _sharding(self, value: str) -> list[Change] | None:
        return [] if value == (self.b.given("sharding") or "distopt") else None

    def _recompute(self, value: str) -> list[Change] | None:
        key = "recompute_granularity"
        short = self._flag("recompute_activations", on=False) + self._flag("moe_layer_recompute", on=False)
        method = self.args.get("recompute_method")
        if value == "none":
            gone = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
            return short + [self._change(name, None) for name in gone if self.args.get(name) is not None]
        if value == "full":
            more = [] if method is not None else [self._change("recompute_method", "uniform")]
            count = [] if self.args.get("recompute_num_layers") is not None else [self._change("recompute_num_layers", 1)]
            return [*short, self._change(key, "full"), *more, *count]
        layers = ("recompute_method", "recompute_num_layers")
        return [*short, self._change(key, "selective"), *(self._change(n, None) for n in layers if self.args.get(n) is not None)]

    def _recompute_modules(self, value: str) -> list[Change]:
        return [self._change("recompute_modules", f"[{value.replace(',', ' ')}]" if self.block else tuple(value.split(",")))]

    def _vpp(self, value: str) -> list[Change] | None:
        if self.args.get("pipeline_model_parallel_layout", "hybrid_layer_pattern", "hybrid_override_pattern") is not None:
            return None
        old = self.args.get("num_layers_per_virtual_pipeline_stage")
        gone = [] if old is None else [self._change("num_layers_per_virtual_pipeline_stage", None)]
        return [*gone, self._change("num_virtual_stages_per_pipeline_rank", int(value))] if value.isdecimal() else None

    def _pp_layout(self, value: str) -> list[Change] | None:
        return [self._change("pipeline_model_parallel_layout", value)] if value.startswith("E") else None

    def _loss(self, value: str) -> list[Change] | None:
        if value == "vocab-parallel":
            return self._flag("cross_entropy_loss_fusion", on=False)
        if value == "fused":
            impl = [self._change("cross_entropy_fusion_impl", "native")]
            return self._flag("cross_entropy_loss_fusion", on=True) + impl
        return None

    def _dropout(self, value: str) -> list[Change]:
        return [self._change(name, float(value)) for name in ("attention_dropout", "hidden_dropout")]

    def _precision(self, value: str) -> list[Change] | None:
        if self.args.get("fp8_format", "fp4_format") is not None:
            return None
        if value in ("bf16", "fp16"):  # gradients accumulate in fp32
            wide = self._flag("accumulate_allreduce_grads_in_fp32", on=value == "fp16")
            return self._flag("fp16" if value == "bf16" else "bf16", on=False) + self._flag(value, on=True) + wide
        if value == "fp8" and self.b.given("precision") in ("bf16", "fp16"):
            return [self._change("fp8_format", "hybrid")]
        return None

    def _offload(self, value: str) -> list[Change] | None:
        """Megatron-LM offloads the optimizer with its precision-aware optimizer only, which has to be distributed.

        arguments.py ``validate_args``, core/optimizer/optimizer_config.py ``__post_init__`` (core_v0.14 to core_v0.19).
        """
        if value in ("", "none"):
            return self._flag("optimizer_cpu_offload", on=False)
        if value != "optimizer" or self.args.on("use_distributed_optimizer") is None:
            return None
        return self._flag("optimizer_cpu_offload", on=True) + self._flag("use_precision_aware_optimizer", on=True)

    def _max_num_seqs(self, value: str) -> list[Change] | None:
        static = self.args.on("use_legacy_static_engine") is not None
        key = "inference_max_requests" if static else "inference_dynamic_batching_max_requests"
        return [self._change(key, int(value))] if value.isdecimal() else None

    # -- one argument ---------------------------------------------------------------------------------------
    def _flag(self, name: str, *, on: bool) -> list[Change]:
        """Give a flag, or take it out where it is given."""
        if on == (self.args.on(name) is not None):
            return []
        if not on and self.main.form == "arguments":
            return [Change(self.main, self._key(name), None, flag=True)]
        return [self._change(name, True if on else None, flag=True)]

    def _change(self, name: str, value: str | float | tuple[str, ...] | None, *, flag: bool = False) -> Change:
        return Change(self.main, self._key(name), value, flag=flag and self.main.form == "arguments")

    def _key(self, name: str) -> str:
        """Return an argument as the document has it, or as Megatron-LM spells it."""
        given = self.args.spelled.get(name)
        if self.main.form == "arguments":
            return given or name.replace("_", "-")
        return f"{self.block}{given or '--' + name.replace('_', '-')}"

"""Settings of an FSDP configuration as accelerate, transformers and those built on them spell it.

Keys with and without ``fsdp_``; FSDP1's sharding strategies by name or number, FSDP2's ``reshard_after_forward``.

Sources: accelerate 1.15.0 (utils/dataclasses.py ``FullyShardedDataParallelPlugin``, utils/fsdp_utils.py, accelerator.py),
transformers 5.24.0 (training_args.py ``_process_fsdp_args``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Builder
from foretell.readers.hf._common import ACCELERATE_VERSION, HF_VERSION, Section, Tables

if TYPE_CHECKING:
    from foretell.readers._document import Found

__all__ = ["FSDP", "Fsdp", "fsdp_settings"]

FSDP: Final = Tables(
    neutral=frozenset((
        "transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap", "state_dict_type", "final_state_dict_type",
        "sync_module_states", "use_orig_params", "forward_prefetch", "xla_fsdp_settings.*", "min_num_params", "min_params",
    )),
    unmodelled={
        "ignored_modules": ("more-memory", "modules that are not sharded"),
        "mixed_precision_policy": ("memory", "formats of FSDP's own choice"),
        "mixed_precision_policy.*": ("memory", "formats of FSDP's own choice"),
        "xla": ("both", "runs on a TPU"),
        "xla_fsdp_v2": ("both", "runs on a TPU"),
        "xla_fsdp_grad_ckpt": ("both", "runs on a TPU"),
    },
)  # fmt: skip
"""Keys of an fsdp_config without their ``fsdp_``."""
_STRATEGIES: Final = {
    "full_shard": ("full", 3), "1": ("full", 3),
    "shard_grad_op": ("full", 2), "2": ("full", 2),
    "no_shard": ("none", 0), "3": ("none", 0),
    "hybrid_shard": ("hybrid", 3), "4": ("hybrid", 3),
    "hybrid_shard_zero2": ("hybrid", 2), "5": ("hybrid", 2),
}  # fmt: skip
"""FSDP1 (torch.distributed.fsdp.ShardingStrategy): over which ranks, and the ZeRO stage that it is."""
_WRAPS: Final = ("transformer_based_wrap", "size_based_wrap", "no_wrap")
_PREFETCHES: Final = {"backward_pre": True, "1": True, "backward_post": False, "2": False, "no_prefetch": False, "3": False}


@dataclass(frozen=True, slots=True)
class Fsdp:
    """What an FSDP configuration decides beyond the settings."""

    version: int
    sharded: bool
    """False for NO_SHARD, which is plain data parallelism."""


def fsdp_settings(
    b: Builder,
    section: Section,
    whole: Found,
    *,
    version: int | None = None,
    default: int = 1,
    trainer: bool = False,
    options: Found | None = None,
) -> Fsdp:
    """Take the settings of an FSDP configuration.

    ``section``: where its keys stand, e.g. ``Section.of(document, "fsdp_config.fsdp_", "fsdp_config.")``.
    ``whole``: what says that there is FSDP at all.  ``version``: decided elsewhere; ``default``: where nothing says it
    (accelerate 1, the Trainer 2).  ``trainer``: by transformers' TrainingArguments, whose ``fsdp`` options ("full_shard
    auto_wrap offload") are ``options``.

    The caller accounts for the rest with ``FSDP.under(*prefixes)``.  ``gpus`` and ``gpus_per_node`` must be set before.
    """
    words = () if options is None else tuple(word.casefold() for word in options.listed())
    given = section.get("version")
    made = version or (given.whole(minimum=1, maximum=2) if given is not None else default)
    whose = f"transformers {HF_VERSION}" if trainer else f"accelerate {ACCELERATE_VERSION}"
    why = f"FSDP{made}, the default of {whose}" if given is None else f"with {given.key} in line {given.node.line}"
    b.set("framework", f"fsdp{made}", whole, why if version is None else "")
    if version is not None and given is not None:
        b.harmless(given)
    for name in ("zero", "sharding"):
        b.settings.pop(name, None)
    sharded = _second(b, section, words, options) if made == 2 else _first(b, section, words, options, whole)
    if sharded:
        _units(b, section, made, trainer)
        offload = section.get("offload_params", "cpu_offload")
        if offload is not None and offload.flag():
            b.set("offload", ("params",), offload)
        elif offload is not None:
            b.harmless(offload)
        elif "offload" in words and options is not None:
            b.set("offload", ("params",), options)
    _checkpointing(b, section)
    loading = section.get("cpu_ram_efficient_loading")
    if loading is not None:
        b.harmless(loading)
        if not loading.flag():
            b.note(f"{loading.where}: every rank loads the whole model into host memory before it is sharded")
    return Fsdp(made, sharded)


def _second(b: Builder, section: Section, words: tuple[str, ...], options: Found | None) -> bool:
    """FSDP2: gathered again in the backward pass, or kept whole from the forward."""
    old = section.get("sharding_strategy")
    if old is not None:
        b.harmless(old)
        b.note(f"{old.where}: {old.key} is not read by FSDP2, which has reshard_after_forward")
    found = section.get("reshard_after_forward")
    if found is not None:
        b.set("zero", 3 if found.flag() else 2, found)
    elif options is not None and "shard_grad_op" in words:
        b.set("zero", 2, options)
    elif options is not None and any(word.startswith("hybrid") for word in words):
        raise options.error("is of FSDP1 alone", hint="Set version: 1 in fsdp_config")
    elif options is not None and "full_shard" in words:
        b.set("zero", 3, options)
    else:
        b.default("zero", 3, f"default of accelerate {ACCELERATE_VERSION}: reshard_after_forward true")
    return True


def _first(b: Builder, section: Section, words: tuple[str, ...], options: Found | None, whole: Found) -> bool:
    """FSDP1: a strategy by name or number."""
    found = section.get("sharding_strategy")
    again = section.get("reshard_after_forward")
    if again is not None and found is None and not isinstance(again.node.value, bool):
        found = again
    elif again is not None:
        b.harmless(again)
    if found is not None:
        over, zero = found.choice(_STRATEGIES)
    else:
        named = next((word for word in words if word in _STRATEGIES), None)
        over, zero = _STRATEGIES[named or "full_shard"]
        found = options if named is not None else None
    if over == "none":
        b.set("framework", "hf-trainer", whole, "NO_SHARD is plain data parallelism")
        b.set("zero", 0, found or whole)
        return False
    if found is not None:
        b.set("zero", zero, found)
    else:
        b.default("zero", zero, f"default of accelerate {ACCELERATE_VERSION}: FULL_SHARD")
    if over == "hybrid" and found is not None:
        gpus, node = b.given("gpus"), b.given("gpus_per_node")
        if isinstance(gpus, int) and isinstance(node, int) and gpus % node == 0:
            b.set("hsdp_replicas", gpus // node, found, "one replica a node")
        else:
            b.doubt(found, "more-memory", "shards inside a node only; how many nodes there are is not said: give --hsdp-replicas")
    return True


def _units(b: Builder, section: Section, version: int, trainer: bool) -> None:
    """Take what is gathered together, and when."""
    policy = section.get("auto_wrap_policy")
    word = None if policy is None else policy.text().strip().casefold()
    if policy is not None and word not in _WRAPS:
        raise policy.error("is no way to wrap", allowed=tuple(name.upper() for name in _WRAPS))
    if policy is not None and word == "no_wrap":
        b.doubt(policy, "more-memory", "the whole model is one unit, gathered at once")
    elif policy is not None and word == "size_based_wrap":
        b.doubt(policy, "memory", "units by size, where each layer is counted as one")
    elif policy is not None:
        b.harmless(policy)
    elif not trainer:
        b.doubt_default("fsdp_auto_wrap_policy", "more-memory", "NO_WRAP: the whole model is one unit, gathered at once")
    limit = section.get("limit_all_gathers")
    if limit is not None and not limit.flag():
        b.doubt(limit, "more-memory", "gathers run ahead without a limit")
    elif limit is not None:
        b.harmless(limit)
    prefetch = section.get("backward_prefetch")
    ahead = False if prefetch is None else prefetch.choice(_PREFETCHES)
    if prefetch is not None and (version == 2 or ahead):
        b.harmless(prefetch)
    elif prefetch is not None:
        b.doubt(prefetch, "less", "no unit is gathered while another runs backward: one is whole, where two are counted")
    elif version == 1:
        b.doubt_default("fsdp_backward_prefetch", "less", "NO_PREFETCH: no unit is gathered while another runs backward")


def _checkpointing(b: Builder, section: Section) -> None:
    """Take FSDP's own activation checkpointing, of whole units."""
    found = section.get("activation_checkpointing")
    if found is not None and found.flag():
        before = b.settings.get("recompute")
        if before is not None and before.value == "full" and before.origin.path:
            problem = "cannot be on beside the Trainer's own checkpointing: transformers refuses both"
            raise found.error(problem, hint=f"Turn one of them off ({before.origin})")
        b.set("recompute", "full", found)
    elif found is not None:
        b.harmless(found)
    moved = section.get("activation_checkpointing_offload")
    if moved is not None and moved.flag():
        b.doubt(moved, "less", "inputs of layers are kept in host memory, and copied there and back")
    elif moved is not None:
        b.harmless(moved)

"""How Composer shards a run of llm-foundry.

Sources: mosaicml/composer 6405188 ``composer/utils/parallelism.py`` FSDPConfig, ``distributed/dist_strategy.py``
prepare_fsdp_module, ``mosaic_parallelism.py``; mosaicml/llm-foundry 8c8dd48 ``llmfoundry/command_utils/train.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._omegaconf import Values
    from foretell.readers._reading import Builder
    from foretell.readers.foundry._model import Model

__all__ = ["sharding"]

_DEFAULT: Final = "default of Composer 0.33 (utils/parallelism.py FSDPConfig)"
_STRATEGIES: Final = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "_hybrid_shard_zero2": 2}
_MIXED: Final = ("pure", "default", "full")


def sharding(b: Builder, values: Values, model: Model) -> None:
    """Take how the states are sharded: FSDP, or DDP where there is no ``fsdp_config`` or one GPU."""
    whole = values.get("fsdp_config")
    strategy = values.get("fsdp_config.sharding_strategy")
    stage = 3 if strategy is None else strategy.choice(_STRATEGIES)
    alone = b.given("gpus") == 1
    if whole is None or stage == 0 or alone:
        why = "one GPU: FSDP reverts to DDP (command_utils/train.py)" if alone and whole is not None else ""
        _plain(b, whole if strategy is None else strategy, model, why)
        _checkpointing(b, values, sharded=False)
        return
    name = "llm-foundry" if model.own else "fsdp1"
    b.set("framework", name, whole, "" if model.own else "transformers' modules under Composer's FSDP")
    if strategy is not None:
        b.set("zero", stage, strategy)
    b.default("zero", 3, f"{_DEFAULT}: FULL_SHARD")
    _version(b)
    _replicas(b, values)
    _mixed(b, values)
    _checkpointing(b, values, sharded=True)
    offload = values.get("fsdp_config.cpu_offload")
    if offload is not None and offload.flag():
        raise offload.error("is not supported by Composer (distributed/mosaic_parallelism.py get_cpu_offload)")
    if offload is not None:
        b.harmless(offload)


def _plain(b: Builder, place: Found | None, model: Model, why: str) -> None:
    """DistributedDataParallel with autocast over fp32 weights."""
    if place is None:
        b.default("framework", "hf-trainer", "no fsdp_config: Composer's DDP, autocast over fp32 weights")
        b.default("zero", 0, "no fsdp_config: Composer's DDP")
    else:
        b.set("framework", "hf-trainer", place, why or "autocast over fp32 weights, DDP")
        b.set("zero", 0, place, why)
    if model.own:
        b.doubt_default("framework", "memory", "MPT under DDP is counted with the Trainer's loop, not with Composer's")


def _version(b: Builder) -> None:
    """Composer's FSDP2 is chosen by a variable (``trainer/trainer.py``)."""
    launch = b.sources.launch
    found = None if launch is None else launch.document.get("FSDP_VERSION")
    if found is None:
        return
    if found.text() == "2":
        b.set("sharding", "fsdp2", found)
    else:
        b.harmless(found)


def _replicas(b: Builder, values: Values) -> None:
    """Take the replicas of a hybrid-sharded run; without a degree, one (``dist_strategy.py``: a mesh of one dimension)."""
    replicas, shards = (values.get(f"fsdp_config.data_parallel_{key}_degree") for key in ("replicate", "shard"))
    gpus = b.given("gpus")
    if replicas is not None:
        b.set("hsdp_replicas", replicas.whole(), replicas)
    elif shards is not None and shards.node.value != -1:
        count = shards.whole()
        if not isinstance(gpus, int):
            b.doubt(shards, "more-memory", "how many replicas there are depends on the number of GPUs: one is counted")
        elif gpus % count:
            raise shards.error(f"does not divide {gpus} GPUs")
        else:
            b.set("hsdp_replicas", gpus // count, shards)


def _mixed(b: Builder, values: Values) -> None:
    """Take what FSDP gathers and reduces in: 16 bits, but for FULL."""
    found = values.get("fsdp_config.mixed_precision")
    if found is None:
        return
    if not found.node.scalar:
        kind = values.get("fsdp_config.mixed_precision.param_dtype")
        b.harmless(found)
        if kind is not None and kind.text().casefold() in ("fp32", "float32", "torch.float32"):
            b.doubt(kind, "more", "weights are gathered in fp32")
        return
    word = found.choice({name: name for name in _MIXED})
    if word == "full" and b.given("precision") != "fp32":
        b.doubt(found, "more", "weights are gathered in fp32")
    else:
        b.harmless(found)


def _checkpointing(b: Builder, values: Values, *, sharded: bool) -> None:
    """Take activation checkpointing, which Composer's FSDP applies."""
    found = values.get("fsdp_config.activation_checkpointing")
    if not sharded:
        if found is not None:
            b.harmless(found)
        b.default("recompute", "none", "Composer recomputes under FSDP only")
    elif found is not None:
        b.set("recompute", "full" if found.flag() else "none", found)
    b.default("recompute", "none", _DEFAULT)

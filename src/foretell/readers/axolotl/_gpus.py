"""How an axolotl run is spread over GPUs, and in which formats its states are kept there.

Sources: axolotl 0.18.0 (``utils/trainer.py`` prepare_optim_env, ``utils/schemas/validation.py``, ``utils/distributed.py``,
``monkeypatch/accelerate/fsdp2.py``, ``loaders/model.py``); accelerate 1.13.0 (``accelerator.py`` prepare_model).
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from foretell.readers._document import Found
from foretell.readers.axolotl import _run as run
from foretell.readers.axolotl._kernels import recompute
from foretell.readers.hf._common import Section
from foretell.readers.hf._fsdp import fsdp_settings
from foretell.readers.hf.accelerate import launch_settings
from foretell.readers.hf.deepspeed import DEEPSPEED, deepspeed_settings

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Builder
    from foretell.readers.axolotl._run import Weights

__all__ = ["groups", "precision", "sharding"]


def sharding(b: Builder, weights: Weights, *, adapters: bool) -> tuple[Document | None, str | None]:
    """Take FSDP, DeepSpeed or plain data parallelism, and recomputation, which depends on it.

    Returns the document of DeepSpeed's configuration, and the precision that it asks for.
    """
    whole, speed = _fsdp_said(b), b.sources.get("deepspeed")
    if speed is not None and not speed.said:
        speed = None
    if whole is not None and speed is not None:
        raise speed.error(f"cannot be beside {whole.key}: axolotl refuses both")
    document = None if speed is None else _named(b, speed) if speed.node.scalar else speed.document
    made = launch_settings(b, done=document)
    beside = None if made is None or whole is not None or speed is not None else b.given("framework")
    recompute(b, adapters=adapters, offloads=whole is None and speed is None and beside in (None, "hf-trainer"))
    if whole is not None:
        _fsdp(b, whole)
        return None, None
    if speed is not None:
        return document, _deepspeed(b, speed, document, weights)
    b.default("framework", "hf-trainer", f"axolotl {run.VERSION} trains with transformers' Trainer (core/trainers/base.py)")
    return None, None if made is None or made.deepspeed is None else made.deepspeed.precision


def _named(b: Builder, found: Found) -> Document | None:
    """Return DeepSpeed's file: on disk, or one of that name among those given."""
    document = b.sources.follow(found)
    if document is not None:
        return document
    name = PurePath(found.text()).name
    return next((d for d in b.sources.others if PurePath(d.path).name == name and d.has("zero_optimization")), None)


def _fsdp_said(b: Builder) -> Found | None:
    """Return what says that FSDP shards the model (``utils/trainer.py`` prepare_optim_env)."""
    found = [one for key in ("fsdp_config", "fsdp") if (one := b.sources.main.get(key)) is not None and one.node.value]
    for one in found:
        if one.key == "fsdp_config":
            one.mapping()
    if not found and (unused := b.sources.get("fsdp_version")) is not None:
        b.harmless(unused)
    return found[0] if found else None


def _fsdp(b: Builder, whole: Found) -> None:
    """Take FSDP; a missing version is 1 (``utils/schemas/validation.py`` check_fsdp_version_in_fsdp_config)."""
    section = Section.of(b.sources.main, "fsdp_config.", "fsdp_config.fsdp_")
    if b.sources.overrides is not None:
        section = Section.of(b.sources.overrides, "fsdp_config.") | section
    own = b.sources.get("fsdp_version") or section.get("version")
    again = section.get("activation_checkpointing")
    if again is not None and again.flag() and b.given("recompute") == "full":
        b.settings.pop("recompute")
        b.note(
            f"{again.where}: transformers stops where gradient_checkpointing is on as well; either of them recomputes each layer"
        )
    made = fsdp_settings(
        b,
        section,
        whole,
        version=1 if own is None else own.whole(maximum=2),
        trainer=True,
        options=b.sources.main.get("fsdp"),
    )
    if made.sharded:
        why = "" if own is not None else f"{run.DEFAULT}: FSDP1 (utils/schemas/validation.py)"
        b.set("framework", f"fsdp{made.version}", own or whole, why)


def _deepspeed(b: Builder, found: Found, document: Document | None, weights: Weights) -> str | None:
    """Take DeepSpeed's own file, or mapping; return the precision that it asks for."""
    if document is None:
        b.set("framework", "deepspeed", found)
        b.needs("zero", f"{found.where} names {found.text()}, which is not here: it says the ZeRO stage and what is offloaded")
        b.doubt(found, "both", "names a file that is not here, with buckets and offloading of its own")
        return None
    if not found.node.scalar:
        return deepspeed_settings(b, document, "deepspeed").precision
    asked = deepspeed_settings(b, document).precision
    DEEPSPEED.rest(b, document)
    if asked not in (None, weights.stored):
        b.note(
            f"{found.where}: {document.path} asks for {asked}, the run itself for {weights.stored}: transformers wants both equal"
        )
    return asked


def precision(b: Builder, weights: Weights, asked: str | None, *, adapters: bool, casts: bool) -> None:
    """Take the formats: how the model was loaded, and what the framework makes of it.

    ``casts``: embeddings, head and norms are cast back to the weights' format.
    """
    framework, stored = b.given("framework"), weights.stored
    eight = run.on(b, "fp8")
    if eight is not None:
        if framework == "fsdp2":
            b.set("precision", "fp8", eight)
            if not adapters:
                for name in ("param_dtype", "grad_dtype", "optim_dtype"):
                    _take(b, weights, name, stored)
            return
        b.doubt(eight, "both", "matrices are multiplied in float8")
    if framework == "deepspeed":
        _take(b, weights, "precision", asked or stored)
    elif stored == "fp32":
        _take(b, weights, "precision", "fp32")
    elif str(framework).startswith("fsdp"):
        if adapters:  # the frozen base stays as it was loaded, adapters are fp32 (peft autocast_adapter_dtype)
            _take(b, weights, "precision", stored)
            _take(b, weights, "param_dtype", stored)
        elif framework == "fsdp1":  # accelerate makes parameters that train fp32 ("Upcasted low precision parameters")
            _take(b, weights, "precision", stored)
        else:  # axolotl's own fsdp2_prepare_model does not
            _take(b, weights, "precision", f"{stored}-true")
    elif adapters and weights.autocast:
        _take(b, weights, "precision", stored)
    else:
        _take(b, weights, "precision", f"{stored}-true")
        if not adapters and not casts:
            why = "embeddings, head and norms are fp32 where attention is not flash (loaders/model.py): counted as the rest"
            b.doubt_default("attn_implementation", "more-memory", why)


def _take(b: Builder, weights: Weights, name: str, value: str) -> None:
    whose = f"{run.DEFAULT}: bf16 auto, weights are loaded in {weights.stored} (utils/config resolve_dtype, loaders/model.py)"
    if weights.said is None:
        b.settings.pop(name, None)
        b.default(name, value, whose)
    else:
        kept = f"weights are loaded in {weights.stored} (utils/config resolve_dtype, loaders/model.py)"
        b.set(name, value, weights.said, kept)


# -- groups of ranks ------------------------------------------------------------------------------------------------------


def groups(b: Builder) -> None:
    """Take the sizes of groups (``utils/distributed.py`` build_parallelism_config); those not modelled are left to the tables."""
    framework = b.given("framework")
    others = 1
    for key in ("tensor_parallel_size", "expert_parallel_size"):
        found = _size(b, key)
        others *= 1 if found is None else found.whole()
    context = _size(b, "context_parallel_size") or _size(b, "sequence_parallel_degree")
    others *= 1 if context is None else context.whole()
    tensor = _size(b, "tensor_parallel_size")
    if tensor is not None and tensor.whole() > 1 and framework == "fsdp2":
        b.set("tp", tensor.whole(), tensor)
        b.default("sp", False, "transformers' tp_plan keeps activations whole (transformers integrations/tensor_parallel.py)")
        tensor.document.mark(tensor.node)
    replicas, shard = b.sources.get("dp_replicate_size"), b.sources.get("dp_shard_size")
    if shard is None and replicas is None:
        return
    copies = 1 if replicas is None else replicas.whole()
    gpus, said = b.given("gpus"), replicas or shard
    assert said is not None  # noqa: S101  # one of them is there
    if shard is not None:
        group = shard.whole() * others
        if isinstance(gpus, int) and replicas is None and gpus % group == 0:
            copies = gpus // group  # what is left is replicated
        elif not isinstance(gpus, int):
            b.set("gpus", group * copies, shard, "the product of the sizes of all groups")
            b.note(f"{shard.where}: {group * copies} GPUs, as the sizes of its groups say; with more, also --set hsdp_replicas=N")
    if framework in ("fsdp1", "fsdp2") and copies > 1:
        b.set("hsdp_replicas", copies, said)


def _size(b: Builder, key: str) -> Found | None:
    """Return a size without counting it as looked at."""
    for document in (b.sources.overrides, b.sources.main):
        node = None if document is None else document.at(key)
        if document is not None and node is not None and node.value is not None:
            return Found(document, key, node)
    return None

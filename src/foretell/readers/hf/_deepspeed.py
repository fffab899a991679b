"""Settings of a DeepSpeed configuration, wherever it stands; "auto" as transformers' Trainer fills it in.

A key that is missing has DeepSpeed's default; "auto" has the Trainer's: removing "auto" changes the run.
Sources: DeepSpeed 0.19.6 (runtime/config.py, zero/config.py), transformers 5.24.0 (integrations/deepspeed.py), accelerate 1.15.0
(utils/dataclasses.py ``DeepSpeedPlugin``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.readers._document import Document, Found
from foretell.readers._reading import Builder, Effect
from foretell.readers.hf._common import Section, dtype_name, offloaded
from foretell.readers.hf._optimizers import DEEPSPEED_OPTIMIZERS, float_of, taken

__all__ = ["BATCH", "DEEPSPEED_VERSION", "OFFLOADED", "DeepSpeed", "deepspeed_settings"]

DEEPSPEED_VERSION: Final = "0.19.6"
_DEFAULT: Final = f"default of DeepSpeed {DEEPSPEED_VERSION}"
BATCH: Final = (
    ("micro_batch", "train_micro_batch_size_per_gpu"),
    ("grad_accum", "gradient_accumulation_steps"),
    ("global_batch", "train_batch_size"),
)
_MASTERS: Final = "bf16_master_weights_and_grads"
OFFLOADED: Final = (
    ("optimizer", "offload_optimizer", ("cpu_offload",), 1),
    ("params", "offload_param", ("cpu_offload_params", "cpu_offload_param"), 3),
)
"""(what, its key, the flags of 2020, the ZeRO stage from which it works)."""
_KEPT: Final = 1_000_000
"""Elements: parameters below such a threshold (norms, biases) are not counted where they stay whole."""


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    """What a DeepSpeed configuration decides beyond the settings."""

    stage: int
    precision: str | None
    """bf16, fp16 or fp32; None: "auto", or (to transformers and accelerate) nothing said: who starts the run decides."""
    optimizer: bool
    """It has an optimizer of its own: transformers' ``optim`` is not used then."""


@dataclass(frozen=True)
class _Part:
    """A configuration inside a document."""

    b: Builder
    document: Document
    at: str
    trainer: bool
    """transformers or accelerate read it first."""

    @property
    def keys(self) -> Section:
        return Section.of(self.document, f"{self.at}." if self.at else "")

    @property
    def zero(self) -> Section:
        return Section.of(self.document, f"{self.at}.zero_optimization." if self.at else "zero_optimization.")

    def given(self, *names: str) -> Found | None:
        """Return a value that is neither absent nor "auto"."""
        return self._decided(self.keys.get(*names))

    def given_zero(self, *names: str) -> Found | None:
        """... of zero_optimization."""
        return self._decided(self.zero.get(*names))

    def _decided(self, found: Found | None) -> Found | None:
        if found is not None and found.node.value == "auto":
            self.b.harmless(found)
            return None
        return found

    def off(self, found: Found | None) -> bool:
        """Whether a flag is given and off; a flag that is on is as counted."""
        if found is None:
            return False
        if found.flag():
            self.b.harmless(found)
            return False
        return True


def deepspeed_settings(b: Builder, document: Document, at: str = "", *, trainer: bool = True) -> DeepSpeed:
    """Take the settings of a DeepSpeed configuration: ``document`` itself, or the mapping at its key ``at``.

    ``trainer``: transformers (or accelerate) reads it and fills in "auto": the batch that ``b`` has already is kept then,
    and another value in both is the error that transformers stops with.  The configuration's own optimizer replaces the
    Trainer's: take ``optim`` only where :attr:`DeepSpeed.optimizer` is false.

    The caller accounts for the rest of the document with :data:`foretell.readers.hf._deepspeed_keys.DEEPSPEED`.
    """
    part = _Part(b, document, at, trainer)
    stage = _stage(part)
    _batch(part)
    precision = _precision(part)
    optimizer = _optimizer(part)
    if stage:
        _offload(part, stage)
        _buckets(part, stage)
    else:
        _unused(part)
    own = part.keys.get("activation_checkpointing") if trainer else None
    if own is not None:  # transformers checkpoints with PyTorch, which this does not concern
        b.harmless(own)
    return DeepSpeed(stage, precision, optimizer)


def _stage(part: _Part) -> int:
    b, document = part.b, part.document
    node = document.at(part.at) if part.at else document.root
    b.set(
        "framework", "deepspeed", Found(document, part.at or "DeepSpeed", node or document.root), "has a DeepSpeed configuration"
    )
    for name in ("sharding", "zero"):
        b.settings.pop(name, None)
    found = part.keys.get("zero_optimization")
    if found is not None and found.node.scalar:  # the form of 2020: true is stage 1
        stage = int(found.flag())
        b.set("zero", stage, found, "true is stage 1")
        return stage
    if found is not None:
        found.mapping()
    given = part.zero.get("stage")
    if given is None:
        b.default("zero", 0, f"{_DEFAULT} (zero/config.py)")
        return 0
    if given.node.value == "auto":
        b.set("zero", 2, given, "auto is 2 to accelerate (utils/dataclasses.py DeepSpeedPlugin)")
        return 2
    stage = given.whole(minimum=0, maximum=3)
    b.set("zero", stage, given)
    return stage


def _unused(part: _Part) -> None:
    """Without sharding nothing else of zero_optimization counts."""
    found = part.keys.get("zero_optimization")
    if found is not None and not found.node.scalar:
        for key in found.mapping():
            inner = part.zero.get(key)
            if inner is not None and key != "stage":
                part.b.harmless(inner)


def _batch(part: _Part) -> None:
    """Take the three numbers of which two decide the third (runtime/config.py ``_set_batch_related_parameters``)."""
    b = part.b
    for name, key in BATCH:
        found = part.given(key)
        if found is None:
            continue
        value, before = found.whole(), b.settings.get(name)
        if part.trainer and before is not None and before.value != value:
            if before.origin.path:
                problem = f"is not {before.said or before.value}, as {before.origin} has it: transformers stops with this error"
                raise found.error(problem, hint=f'Say the same in both, or "auto" for {key}')
            other = f"{before.value}, {before.origin.why}"
            b.note(f"{found.where}: {key} {value} is taken; transformers wants the same of its own ({other})")
        if part.trainer and before is not None and before.value == value and before.origin.path:
            b.harmless(found)  # the same as the Trainer's own
            continue
        b.set(name, value, found)
    if not part.trainer and not {"micro_batch", "global_batch"} <= b.settings.keys():
        b.default("grad_accum", 1, f"{_DEFAULT} (runtime/config.py)")


def _precision(part: _Part) -> str | None:
    """Return which half precision is on; None where nothing says so, or "auto" does."""
    b = part.b
    made: str | None = None
    for name, keys in (("bf16", ("bf16.enabled", "bfloat16.enabled")), ("fp16", ("fp16.enabled",))):
        found = part.given(*keys)
        if found is None:
            continue
        if not found.flag():
            b.harmless(found)
            continue
        if made is not None:
            raise found.error("cannot be on beside bf16: DeepSpeed refuses both")
        made = name
        b.set("precision", name, found)
    for names, key in ((("master_dtype", "grad_dtype"), _MASTERS), (("optim_dtype",), "bf16_optimizer_states")):
        found = part.given(f"bf16.{key}", f"bfloat16.{key}")
        if found is not None and found.flag():
            for name in names:
                b.set(name, "bf16", found)
        elif found is not None:
            b.harmless(found)
    grads = part.given("data_types.grad_accum_dtype")
    if grads is not None:
        b.set("grad_dtype", dtype_name(grads), grads)
    if made is None and not part.trainer:
        b.default("precision", "fp32", f"{_DEFAULT}: neither bf16 nor fp16 is on (precision_config.py)")
        return "fp32"
    return made


def _optimizer(part: _Part) -> bool:
    b, found = part.b, part.given("optimizer.type")
    if found is None:
        return False
    made = found.choice(DEEPSPEED_OPTIMIZERS)
    taken(b, found, made)
    own = part.given("optimizer.params.torch_adam")
    if own is not None and own.flag() and made.name == "adamw":
        b.set("optimizer_impl", "foreach", own, "PyTorch's AdamW in place of DeepSpeed's fused one")
    elif own is not None:
        b.harmless(own)
    momentum = part.given("optimizer.params.momentum")
    if momentum is not None and made.name == "sgd" and float_of(momentum.text()) > 0:
        b.set("optimizer", "sgdm", momentum)
    elif momentum is not None:
        b.harmless(momentum)
    return True


def _offload(part: _Part, stage: int) -> None:
    """Take what goes to host memory: nested mappings, the "none" of templates, and the flags of 2020."""
    b, moved = part.b, list[tuple[str, Found]]()
    for name, key, legacy, least in OFFLOADED:
        found = part.zero.get(f"{key}.device") or _word(part, key) or part.zero.get(*legacy)
        if found is None:
            continue
        if not _away(found):
            b.harmless(found)
        elif stage < least:
            b.harmless(found)
            b.note(f"{found.where}: {found.key} has no effect below ZeRO stage {least}")
        else:
            moved.append((name, found))
            if found.node.value == "nvme":
                b.doubt(found, "speed", "states are read from and written to a disk")
    offloaded(b, moved)
    ratio = part.given_zero("offload_optimizer.ratio")
    if ratio is not None and ratio.real(minimum=0.0, maximum=1.0) < 1.0:
        b.doubt(ratio, "more-memory", "a part of the optimizer stays on the GPU")
    elif ratio is not None:
        b.harmless(ratio)


def _word(part: _Part, key: str) -> Found | None:
    """Return the whole of ``offload_...`` where it is one word, as templates write "none"."""
    found = part.zero.get(key)
    if found is None or found.node.scalar:
        return found
    found.mapping()
    return None


def _away(found: Found) -> bool:
    if isinstance(found.node.value, bool):
        return found.flag()
    word = found.text().strip().casefold()
    if word not in ("none", "cpu", "nvme", "auto"):
        raise found.error("is no place for states", allowed=("none", "cpu", "nvme"))
    return word in ("cpu", "nvme")


def _buckets(part: _Part, stage: int) -> None:
    """Take the sizes of buffers, in elements."""
    b = part.b
    bucket = part.zero.get("reduce_bucket_size")
    if bucket is not None and bucket.node.value == "auto":
        b.set("reduce_bucket", "auto", bucket, "the hidden size squared (transformers integrations/deepspeed.py)")
    elif bucket is not None:
        b.set("reduce_bucket", bucket.whole(), bucket)
    overlap = part.given_zero("overlap_comm")
    if part.off(overlap) and overlap is not None:
        effect: Effect = "less" if stage < 3 else "speed"
        b.doubt(
            overlap, effect, "exchanges wait for the computation" + (": one bucket, where two are counted" if stage < 3 else "")
        )
    elif overlap is None and stage < 3:
        why = "off below stage 3 (zero/config.py): one reduction bucket, where two are counted"
        b.doubt_default("zero_optimization.overlap_comm", "less", why)
    copied = part.given_zero("contiguous_gradients")
    if part.off(copied) and copied is not None:
        if stage < 3:
            b.doubt(copied, "memory", "gradients stay where autograd made them")
        else:
            b.harmless(copied)
    if stage == 3:
        _live(part)


def _live(part: _Part) -> None:
    """Take the limits of stage 3: of whole parameters the smaller one counts."""
    b = part.b
    live = part.given_zero("stage3_max_live_parameters", "max_live_parameters")
    again = part.given_zero("stage3_max_reuse_distance", "max_reuse_distance")
    limits = sorted((found for found in (live, again) if found is not None), key=lambda found: found.whole(minimum=0))
    if limits:
        least = limits[0].whole(minimum=0)
        # partitioned_param_coordinator.py: __params_to_release, and no prefetching beyond the limit
        b.set("live_parameters", max(1, least), limits[0], "" if least else "0: no weights are kept but those in use, as with 1")
        for other in limits[1:]:
            b.harmless(other)
    group = part.given_zero("sub_group_size")
    if group is not None:  # stage3.py _create_fp16_sub_groups
        size = group.whole(minimum=0, maximum=10**13)
        b.set("sub_group", max(1, size), group, "" if size else "0: each parameter is a group of its own, as with 1")
    small = part.given_zero("stage3_param_persistence_threshold", "param_persistence_threshold")
    if small is not None and small.whole(minimum=0) > _KEPT:
        b.doubt(small, "more-memory", "parameters below this size are not sharded")
    elif small is not None:
        b.harmless(small)

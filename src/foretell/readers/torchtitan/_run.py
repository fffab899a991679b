"""What a torchtitan file, flags or a known configuration say of a run, with torchtitan's own defaults.

Source: pytorch/torchtitan ``config/job_config.py`` (until 9810191bb), ``config/configs.py`` (b5bcd76c6), ``train.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers.torchtitan._models import model_of

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._omegaconf import Values
    from foretell.readers._reading import Builder
    from foretell.readers.torchtitan._models import Config

__all__ = ["Run", "activations", "batch", "formats", "kernels", "model", "optimizer"]

_SECTIONS: Final = ("parallelism", "experimental", "training")
"""Where degrees of parallelism stand, by age: of their own since 2025, in two sections before."""


@dataclass(frozen=True)
class Run:
    """One run that is being read."""

    b: Builder
    values: Values
    config: Config | None
    """The configuration in Python that the command names."""
    whose: str
    """Whose defaults are taken."""

    def degree(self, *names: str) -> Found | None:
        """Return a degree of parallelism, in whichever section it stands."""
        return self.values.get(*(f"{section}.{name}" for section in _SECTIONS for name in names))

    def on(self, *keys: str) -> Found | None:
        """Return a switch that is there and on; one that is off changes nothing."""
        found = self.values.get(*keys)
        if found is not None and not found.flag():
            self.b.harmless(found)
            return None
        return found

    def word(self, key: str) -> tuple[str, Found | None]:
        """Return a word in small letters, empty where there is none."""
        found = self.values.get(key)
        return ("" if found is None else found.text().strip().casefold()), found


def model(run: Run) -> None:
    """Take the model by its name and flavor, or the hub's for ``transformers_modeling_backend``."""
    b, values = run.b, run.values
    hub, name, flavor = (values.get(key) for key in ("hf_transformers.model", "model.name", "model.flavor"))
    if hub is not None:
        b.model(hub.text().strip(), hub)
        for unused in (name, flavor):
            if unused is not None:
                b.harmless(unused)
        return
    said = [name.text().strip() if name is not None else "", flavor.text().strip() if flavor is not None else ""]
    said[0] = said[0] or (run.config.model if run.config else "llama3")
    said[1] = said[1] or (run.config.flavor if run.config else "debugmodel")
    made = model_of(*said)
    place = flavor or name
    if made is not None:
        b.model(made, place, "" if place is not None else run.whose)
    if name is not None and (made is None or name is not place):
        b.harmless(name)
    if flavor is not None and made is None:
        b.harmless(flavor)
    if made is None:
        where = "" if place is None else f"{place.where}: "
        b.needs("model", f"{where}torchtitan's model {said[0]}, flavor {said[1]}, is Python that is not known here")


# -- the batch -----------------------------------------------------------------------------------------------------------


def batch(run: Run) -> None:
    """Take the batch: of a data-parallel rank, divided into micro-batches where there is a pipeline."""
    if any(run.values.has(f"training.{key}") for key in ("num_tokens_per_microbatch_per_dp_rank", "max_context_length")) or (
        run.config is not None
    ):
        _tokens(run)
        return
    b, values = run.b, run.values
    length, local = values.get("training.seq_len"), values.get("training.local_batch_size", "training.batch_size")
    if length is not None:
        b.set("seq_len", length.whole(), length)
    b.default("seq_len", 2048, run.whose)
    each, stages = 8 if local is None else local.whole(), b.degree("pp")
    size, count = run.degree("pipeline_parallel_microbatch_size"), run.degree("pipeline_parallel_microbatches")
    whole = values.get("training.global_batch_size")
    micro = each
    if stages > 1 and count is not None:
        micro = max(1, each // count.whole())
    elif stages > 1:
        old = values.has("training.batch_size")  # as many micro-batches as stages until 5e2033c75 (2025-04)
        micro = size.whole() if size is not None else max(1, each // stages) if old else 1
    for found in (size, count):
        if found is not None and stages == 1:
            b.harmless(found)
    if each % micro:
        raise (size or count or local or length).error("does not divide local_batch_size")  # type: ignore[union-attr]
    place = (size or count or local) if stages > 1 else local
    if place is None:
        b.default("micro_batch", micro, run.whose)
    else:
        b.set("micro_batch", micro, place, "" if stages == 1 else f"{each // micro} micro-batches of the batch of a rank")
    for found in (local, size, count):
        if found is not None and found is not place and stages > 1:
            b.harmless(found)
    if whole is not None and whole.whole(minimum=-1) > 0:
        b.set("global_batch", whole.whole(), whole)
    else:
        if whole is not None:
            b.harmless(whole)
        b.default("grad_accum", each // micro, f"{run.whose}: one batch of every rank a step")


def _tokens(run: Run) -> None:
    """Take the batch in tokens, as it is written since 2026."""
    b, values, known = run.b, run.values, run.config
    length, local = (values.get(f"training.{key}") for key in ("max_context_length", "num_tokens_per_microbatch_per_dp_rank"))
    tokens = local.whole() if local is not None else known.passes * known.length if known is not None else 16384
    size = length.whole() if length is not None else known.length if known is not None else 2048
    if tokens % size:
        size = tokens  # documents of any length are packed: the tokens count
        b.note(f"{tokens} tokens a micro-batch are no whole number of contexts: taken as one sequence")
    if length is not None:
        b.set("seq_len", size, length)
    b.default("seq_len", size, run.whose)
    if local is not None:
        b.set("micro_batch", tokens // size, local, f"{tokens} tokens of {size}")
    b.default("micro_batch", tokens // size, run.whose)
    b.default("packing", True, f"{run.whose}: documents are packed")
    whole, count = values.get("training.num_tokens_per_train_step"), values.get("parallelism.num_pp_microbatches")
    stages = b.degree("pp")
    if whole is not None and whole.whole(minimum=-1) > 0:
        if whole.whole() % size:
            raise whole.error("must be a multiple of the context length", allowed=f"{size} ...")
        b.set("global_batch", whole.whole() // size, whole, f"in sequences of {size} tokens")
    elif count is not None and stages > 1:
        b.set("grad_accum", count.whole(), count)
    else:
        b.default("grad_accum", 1, run.whose)
    for found in (whole, count):
        if found is not None and all(s.origin.key != found.key for s in b.settings.values()):
            b.harmless(found)


# -- formats, kernels, optimizer -----------------------------------------------------------------------------------------


def formats(run: Run) -> None:
    """Take the format of weights, the one they are gathered in, and low-precision products."""
    b, known = run.b, run.config
    stored, stored_at = run.word("training.dtype")
    mixed, mixed_at = run.word("training.mixed_precision_param")
    for word, found in ((stored, stored_at), (mixed, mixed_at)):
        if found is not None and word not in ("bfloat16", "float32"):
            raise found.error("is no format that torchtitan trains in", allowed=("bfloat16", "float32"))
    low = _low(run)
    if stored == "bfloat16" and stored_at is not None:
        b.set("precision", "bf16-true", stored_at)
        if low is not None:
            b.set("compute_dtype", low[0], low[1])
    elif low is not None:
        b.set("precision", low[0], low[1])
    elif known is not None and (known.float8 or known.precision):
        b.default("precision", known.precision or "fp8", run.whose)
    elif mixed == "float32" and mixed_at is not None:
        b.set("precision", "fp32", mixed_at)
    elif mixed_at is not None:
        b.set("precision", "bf16", mixed_at)
    b.default("precision", "bf16", f"{run.whose}: fp32 shards, gathered in bfloat16")
    for found in (stored_at, mixed_at):
        if found is not None and all(s.origin.key != found.key for s in b.settings.values()):
            b.harmless(found)
    tolerant = run.on("fault_tolerance.enable")
    if tolerant is not None:
        b.doubt(tolerant, "both", "TorchFT replicates over groups that may fail, with copies of its own")


def _low(run: Run) -> tuple[str, Found] | None:
    """Return the format of products below 16 bits, and what asks for it."""
    b, values = run.b, run.values
    listed, old, older = (
        values.get("model.converters"),
        values.get("float8.enable_float8_linear"),
        values.get("training.fp8_linear"),
    )
    names = () if listed is None else tuple(name.strip().casefold() for name in listed.listed() if name.strip())
    prefix = "quantize.linear.float8." if not values.has("float8") else "float8."
    gather, recipe = (values.get(f"{prefix}{key}") for key in ("enable_fsdp_float8_all_gather", "recipe_name"))
    mx = values.get("quantize.linear.mx.recipe_name", "mx.recipe_name")
    eight = next((listed for name in names if listed is not None and name.endswith("float8")), None)
    place = eight or (old if old is not None and old.flag() else None) or (older if older is not None and older.text() else None)
    if place is not None:
        if recipe is not None:
            b.set("fp8_recipe", recipe.text().strip().casefold(), recipe)
        elif gather is not None and gather.flag():
            b.set("fp8_recipe", "tensorwise", gather, "float8 is gathered too")
    other = next((listed for name in names if listed is not None and name.endswith((".mx", "mx", "mxfp8"))), None)
    for name in names:
        if listed is not None and not name.endswith(("float8", "mx", "mxfp8")):
            b.doubt(listed, "both", f"the converter {name} is not known here")
    for found in (listed, old, older, gather, recipe, mx):
        if found is None or found is (place or other) or any(s.origin.key == found.key for s in b.settings.values()):
            continue
        if not any(row.key == found.key for row in b.unmodelled):
            b.harmless(found)
    if place is not None:
        return "fp8", place
    return None if other is None else ("mxfp8", other)


def kernels(run: Run) -> None:
    """Take compilation and the loss."""
    b, known = run.b, run.config
    found, parts = run.on("compile.enable", "training.compile"), run.values.get("compile.components")
    names = ("model", "loss") if parts is None else parts.listed()
    if found is None and known is not None:
        names = known.compiled if parts is None else names
        if "model" in names and known.compiled:
            b.default("compile", True, run.whose)
    elif found is not None and "model" in names:
        b.set("compile", True, found)
    elif found is not None:
        b.harmless(found)
    if parts is not None:
        b.harmless(parts)
    if known is not None:
        b.default("loss", "chunked", f"{run.whose}: ChunkedLossWrapper projects 8 chunks one after the other")
    elif found is not None and "loss" in names and b.degree("tp") == 1:
        b.default("loss", "compiled", f"{found.where}: the loss is compiled (components/loss.py)")
    else:
        b.default("loss", "eager", f"{run.whose} (components/loss.py cross_entropy_loss)")


def optimizer(run: Run) -> None:
    """Take the optimizer and who applies it."""
    b = run.b
    word, found = run.word("optimizer.name")
    name = {"": "adamw", "adam": "adamw", "adamw": "adamw", "muon": "muon"}.get(word)
    if found is not None:
        if name is None:
            b.doubt(found, "both", "an optimizer that is not known here: counted as AdamW")
        b.set("optimizer", name or "adamw", found)
    b.default("optimizer", "adamw", run.whose)
    way, fused = run.values.get("optimizer.implementation"), run.values.get("optimizer.fused")
    if way is not None:
        b.set("optimizer_impl", way.choice({"fused": "fused", "foreach": "foreach", "for-loop": "forloop"}), way)
    elif fused is not None:
        b.set("optimizer_impl", "fused" if fused.flag() else "foreach", fused)
    old = run.values.has("training.batch_size") and run.values.has("training.data_parallel_degree")
    b.default("optimizer_impl", "foreach" if old else "fused", run.whose)
    within = run.on("optimizer.early_step_in_backward")
    if within is not None:
        b.set("optimizer_in_backward", True, within)
    host = run.on("training.enable_cpu_offload")
    if host is not None:
        b.set("offload", ("grads", "optimizer", "params"), host)


def activations(run: Run) -> None:
    """Take what is recomputed: every so-manieth layer, torchtitan's list of operators, or all."""
    b, known = run.b, run.config
    mode, found = run.word("activation_checkpoint.mode")
    option = run.values.get("activation_checkpoint.selective_ac_option")
    if found is None and known is not None:
        b.default("recompute", known.recompute, run.whose)
        if known.recompute == "selective":
            b.default("recompute_scope", "op", f"{run.whose}: SelectiveAC keeps the outputs of a list of operators")
        return
    if mode not in ("", "none", "selective", "full", "memory_budget"):
        assert found is not None  # noqa: S101  # it has a word
        raise found.error("is no mode of activation checkpointing", allowed=("none", "selective", "full", "memory_budget"))
    if mode == "memory_budget":
        assert found is not None  # noqa: S101
        b.doubt(found, "both", "the compiler chooses what is kept within a budget: counted as nothing recomputed")
        mode = "none"
    kind = mode or "selective"
    if found is not None:
        b.set("recompute", kind, found)
    b.default("recompute", kind, run.whose)
    if kind != "selective":
        if option is not None:
            b.harmless(option)
        return
    every = "2" if option is None else option.text().strip().casefold()
    if every == "op":
        assert option is not None  # noqa: S101
        b.set("recompute_scope", "op", option)
        return
    if not every.isdecimal() or int(every) < 1:
        assert option is not None  # noqa: S101
        raise option.error("must be a whole number, or op", allowed=("op", "1", "2"))
    if int(every) == 1:  # every layer
        b.settings.pop("recompute", None)
        assert option is not None  # noqa: S101
        b.set("recompute", "full", option, "every layer")
        if found is not None:
            b.harmless(found)
        return
    b.default("recompute_scope", "layer", run.whose)
    if option is not None:
        b.set("recompute_layers", int(every), option, "every so-manieth layer in full")
        b.set("recompute_scope", "layer", option)
    b.default("recompute_layers", int(every), run.whose)

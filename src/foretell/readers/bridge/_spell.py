"""Options written back as fields of Megatron-Bridge's and NeMo's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change

if TYPE_CHECKING:
    from foretell.readers._reading import Builder, Sources, Value
    from foretell.readers.bridge._fields import Fields

__all__ = ["Writer"]

_WHOLE: Final = {
    "micro_batch": ("micro_batch_size", "train"),
    "global_batch": ("global_batch_size", "train"),
    "tp": ("tensor_model_parallel_size", "model"),
    "pp": ("pipeline_model_parallel_size", "model"),
    "cp": ("context_parallel_size", "model"),
    "ep": ("expert_model_parallel_size", "model"),
    "etp": ("expert_tensor_parallel_size", "model"),
    "vpp": ("num_virtual_stages_per_pipeline_rank", "model"),
}
"""Option -> the argument that its field means, and the section of a new one."""
_FIELDS: Final = {"num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size"}
_FLAGS: Final = {"sp": ("sequence_parallel", "model")}
_OLD: Final = {
    "recompute_granularity": "model.activations_checkpoint_granularity",
    "recompute_method": "model.activations_checkpoint_method",
    "recompute_num_layers": "model.activations_checkpoint_num_layers",
}
"""NeMo 1's fields, which stand in its files without a value."""
_LAYERS: Final = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")


class Writer:
    """Spells options where their fields stand, or where Megatron-Bridge has them."""

    def __init__(self, b: Builder, sources: Sources, view: Fields) -> None:
        """Keep where fields are written."""
        self.b, self.sources, self.view = b, sources, view
        self.bridge = sources.main.at("train") is not None or sources.main.at("ddp") is not None

    def __call__(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that make an option so."""
        text = str(value)
        if name in _WHOLE:
            key, section = _WHOLE[name]
            return self._put(key, section, int(text)) if text.isdecimal() else None
        if name in _FLAGS:
            return self._put(*_FLAGS[name], value is True or text == "true")
        made = getattr(self, f"_{name}", None)
        return None if made is None else made(text)

    def _grad_accum(self, _value: str) -> list[Change] | None:
        """Passes follow from the global batch."""
        return [] if "global_batch_size" in self.view.found else None

    def _seq_len(self, value: str) -> list[Change] | None:
        if not value.isdecimal():
            return None
        keys = (
            "model.seq_length",
            "dataset.seq_length",
            "dataset.sequence_length",
            "data.seq_length",
            "model.encoder_seq_length",
        )
        documents = [document for document in (self.sources.overrides, self.sources.main) if document is not None]
        out = [Change(document, key, int(value)) for document in documents for key in keys if document.at(key) is not None]
        return out or None

    def _zero(self, value: str) -> list[Change] | None:
        if self.b.given("sharding") is not None or value not in ("0", "1"):
            return None
        if not self.bridge:
            found = self.view.found.get("use_distributed_optimizer")
            own = found is not None and found.key.endswith("use_distributed_optimizer")
            return self._put("use_distributed_optimizer", "", value == "1") if own else None
        keys = [key for key in ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
                if self.sources.main.at(key.partition(".")[0]) is not None]  # fmt: skip
        return [Change(self.sources.main, key, value == "1") for key in keys] or None

    def _sharding(self, value: str) -> list[Change] | None:
        return [] if value == (self.b.given("sharding") or "distopt") else None

    def _recompute(self, value: str) -> list[Change] | None:
        method, modules = ("recompute_method", "recompute_num_layers"), ("recompute_modules",)
        if value == "full":
            given = [self._put(name, "model", new) for name, new in (("recompute_granularity", "full"), *(
                (name, new) for name, new in (("recompute_method", "uniform"), ("recompute_num_layers", 1))
                if name not in self.view.found
            ))]  # fmt: skip
            return _joined(given)
        if value == "selective":
            return _joined([self._put("recompute_granularity", "model", "selective"), *map(self._gone, method)])
        return _joined([*map(self._gone, ("recompute_granularity", *method, *modules))])

    def _recompute_scope(self, value: str) -> list[Change] | None:
        """The mode brings ``uniform``, one layer at a time; modules are what selective means."""
        given = "recompute_method" in self.view.found
        if value in ("modules", "layer") or (value == "uniform" and not given):
            return []
        return self._put("recompute_method", "model", value) if value in ("uniform", "block") and given else None

    def _recompute_modules(self, value: str) -> list[Change] | None:
        return self._put("recompute_modules", "model", tuple(value.split(",")))

    def _gone(self, name: str) -> list[Change] | None:
        return self._put(name, "model", None) if name in self.view.found else []

    def _put(self, name: str, section: str, value: Value | None) -> list[Change] | None:
        """Change a field where it stands; a new one goes where Megatron-Bridge has it."""
        found, main = self.view.found.get(name), self.sources.main
        if found is not None:
            pair = found.document is self.sources.overrides
            return None if pair and value is None else [Change(found.document, found.key, value)]
        if value is None:
            return None
        if name in _OLD and main.at(_OLD[name]) is not None:
            return [Change(main, _OLD[name], value)]
        place = section if self.bridge else "model.config" if name in _LAYERS else ""
        node = main.at(place) if place else None
        if node is None or not isinstance(node.value, dict):
            return None
        return [Change(main, f"{place}.{_FIELDS.get(name, name)}", value)]


def _joined(parts: list[list[Change] | None]) -> list[Change] | None:
    """Return all changes, or None where one of them cannot be made."""
    out: list[Change] = []
    for part in parts:
        if part is None:
            return None
        out += part
    return out

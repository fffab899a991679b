"""Options written in the keys of a MaxText run.  Sources as in :mod:`foretell.readers.maxtext._run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._reading import Change

if TYPE_CHECKING:
    from foretell.readers._document import Document
    from foretell.readers._reading import Value
    from foretell.readers.maxtext._layers import Layers

__all__ = ["Speller"]

_WORDS: Final[dict[str, tuple[str, dict[str, Value]]]] = {
    "recompute": ("remat_policy", {"full": "full", "none": "minimal_with_context"}),
    "attention": ("attention", {"flash": "flash", "eager": "dot_product"}),
    "optimizer": ("opt_type", {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}),
    "offload": ("optimizer_memory_host_offload", {"optimizer": True}),
    "loss": ("num_vocab_tiling", {"chunked-head": 8}),
}


class Speller:
    """Writes options in the file of the run, or in the command where they stand there."""

    def __init__(self, layers: Layers) -> None:
        """Keep the layers."""
        self.layers = layers

    def spell(self, name: str, value: str | bool) -> list[Change] | None:
        """Return the changes that say an option; None where the files cannot."""
        place = self.layers.run
        if place is None:
            return None
        word = str(value)
        if name == "seq_len":
            return self._change("max_target_length", int(word))
        if name == "grad_accum" and not self._pipeline:
            return self._change("gradient_accumulation_steps", int(word))
        if name == "micro_batch" and not self._pipeline:
            return self._micro(int(word))
        key, words = _WORDS.get(name, ("", {}))
        written = words.get(word)
        return None if written is None else self._change(key, written)

    @property
    def _pipeline(self) -> bool:
        return any(
            (found := self.layers.get(f"{net}_pipeline_parallelism")) is not None and found.whole() > 1 for net in ("ici", "dcn")
        )

    def _micro(self, size: int) -> list[Change] | None:
        """Divide a replica's samples among its devices."""
        each = 1
        for name in ("tensor", "tensor_sequence", "context", "context_usp_ulysses", "sequence"):
            for net in ("ici", "dcn"):
                found = self.layers.get(f"{net}_{name}_parallelism")
                each *= 1 if found is None or found.node.value == -1 else found.whole()
        share = size / each
        return self._change("per_device_batch_size", int(share) if share == int(share) else share)

    def _change(self, key: str, value: Value) -> list[Change] | None:
        """Change a key where it stands above what the run is based on, or add it to the run's file; None on a bare command."""
        run = self.layers.run
        assert run is not None  # noqa: S101  # asked before
        above: list[Document] = []
        for document in self.layers.documents:
            above.append(document)
            if document is run:
                break
        place = next((document for document in above if document.has(key)), run)
        return None if place.form == "arguments" and not place.has(key) else [Change(place, key, value)]

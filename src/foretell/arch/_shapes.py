"""Shapes of a workload under their usual names, read from its architecture."""

from __future__ import annotations

from abc import abstractmethod

from foretell.arch.architecture import Architecture

__all__ = ["Shapes"]


class Shapes:
    """What a workload's architecture says about its widths and counts."""

    @property
    @abstractmethod
    def architecture(self) -> Architecture:
        """The operators."""

    @property
    def family(self) -> str:
        """decoder, encoder, encoder-decoder, vision, audio, diffusion, cnn or multimodal."""
        return self.architecture.family

    @property
    def layers(self) -> int:
        """Layers of the trunk."""
        return self.architecture.layers

    @property
    def hidden_dim(self) -> int:
        """Width of the residual stream."""
        return self.architecture.hidden

    @property
    def vocab_size(self) -> int | None:
        """Entries of the token table; None where there is none."""
        return self.architecture.vocab

    @property
    def context_length(self) -> int | None:
        """Longest sequence that the model's file names."""
        return self.architecture.max_positions

    @property
    def heads(self) -> int | None:
        """Query heads."""
        return self.architecture.heads

    @property
    def kv_heads(self) -> int | None:
        """Key and value heads (equal to `heads` in multi-head attention)."""
        return self.architecture.kv_heads or self.architecture.heads

    @property
    def head_dim(self) -> int | None:
        """Width of one head."""
        arch = self.architecture
        return arch.head_dim or (arch.hidden // arch.heads if arch.heads else None)

    @property
    def ffn_dim(self) -> int | None:
        """Width of the feed-forward network of a dense layer."""
        return self.architecture.ffn

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output projection is the token table."""
        return self.architecture.tied

    @property
    def experts(self) -> int:
        """Routed experts of a layer; 0 for a dense model."""
        return self.architecture.experts

    @property
    def experts_per_token(self) -> int:
        """Routed experts that one token visits."""
        return self.architecture.top_k

"""Architecture: a model as blocks of operators, and what readers of configuration files produce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from foretell.arch.operators import Operator, Weight

Stream = Literal["text", "encoder", "sample"]
"""What one row of a block's tensors is: a token of the (decoder) sequence, a token of the encoder's sequence,
or one of ``positions`` fixed places of a sample (image patches, audio frames, latent pixels)."""


@dataclass(frozen=True, eq=False)
class Block:
    """Operators that run in order and are repeated, checkpointed and sharded as one unit (a layer).

    ``stream`` and ``positions`` say how many rows its tensors have: ``text`` = micro-batch x sequence,
    ``encoder`` = micro-batch x encoder sequence, ``sample`` = micro-batch x ``positions``.
    """

    name: str
    ops: tuple[Operator, ...]
    width: int
    """Width of its input ``x`` (the residual stream)."""
    stream: Stream = "text"
    positions: int = 0
    shared: bool = False
    """True when another block of the stack owns its weights (ALBERT runs one layer many times)."""

    borrowed: tuple[str, ...] = ()
    """Names of operators whose weights an earlier layer owns (Zamba 2's shared transformer runs in many layers)."""
    checkpoints: tuple[tuple[str, ...], ...] | None = None
    """Names of the operators of each of its parts that full checkpointing computes again by itself, while the rest is kept
    (a U-Net of diffusers); None: the block is computed again as a whole."""

    def weights(self) -> Iterator[Weight]:
        if not self.shared:
            for op in self.ops:
                if op.name not in self.borrowed:
                    yield from op.weights()

    @cached_property
    def parameters(self) -> int:
        return sum(w.elements for w in self.weights())

    @property
    def reads_memory(self) -> bool:
        """Whether it has a cross attention."""
        return any("memory" in op.ins for op in self.ops)


@dataclass(frozen=True, eq=False)
class Stack:
    """A run of layers: ``pattern[i]`` is the index into ``blocks`` of the block that layer ``i`` is."""

    name: str
    blocks: tuple[Block, ...]
    pattern: tuple[int, ...]

    @property
    def layers(self) -> int:
        return len(self.pattern)

    def counts(self) -> tuple[int, ...]:
        return tuple(self.pattern.count(i) for i in range(len(self.blocks)))

    @cached_property
    def parameters(self) -> int:
        return sum(n * b.parameters for n, b in zip(self.counts(), self.blocks, strict=True))


@dataclass(frozen=True, eq=False)
class Quantized:
    """How a checkpoint stores its matrices: ``method`` as in the file, true bits per element, what is exempt."""

    method: str
    bits: float
    """Mean stored bits per quantised element, block scales and zero points included."""
    skip: tuple[str, ...] = ()
    """Names (or globs) of modules left in ``rest`` precision."""
    detail: str = ""
    groups: tuple[tuple[str, float], ...] = ()
    """(name or glob, bits) of modules stored in a way of their own; with ``bits`` = 0 the others are not quantised."""


@dataclass(frozen=True, eq=False)
class Architecture:
    """A model: an input block, stacks of layers in the order they run, an output block.

    ``stacks`` holds every tower (encoder first, then the trunk ``main``).  ``embed`` holds what comes before
    the trunk (token table, positions), ``head`` what comes after (final norm, output projection).
    """

    name: str
    model_type: str
    family: Literal["decoder", "encoder", "encoder-decoder", "vision", "audio", "diffusion", "cnn", "multimodal"]
    embed: Block
    stacks: tuple[Stack, ...]
    head: Block
    hidden: int
    vocab: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    max_positions: int | None = None
    tied: bool = False
    experts: int = 0
    top_k: int = 0
    text: Architecture | None = None
    """The language part of a multimodal model, as an architecture of its own."""
    dtype: str | None = None
    quantized: Quantized | None = None
    unused: tuple[Block, ...] = ()
    """Blocks in the checkpoint that the training module does not build (multi-token-prediction layers)."""
    notes: tuple[str, ...] = ()
    config: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def main(self) -> Stack:
        """The trunk: the stack the sequence runs through last."""
        return self.stacks[-1]

    @property
    def layers(self) -> int:
        return self.main.layers

    @property
    def memory(self) -> Block | None:
        """The block whose output the trunk's cross attentions read."""
        if len(self.stacks) < 2 or self.family == "diffusion" or not any(b.reads_memory for b in self.main.blocks):
            return None
        before = self.stacks[-2]
        return before.blocks[before.pattern[-1]]

    @cached_property
    def parameters(self) -> int:
        """Exact number of parameters of the module."""
        return self.embed.parameters + self.head.parameters + sum(s.parameters for s in self.stacks)

    @cached_property
    def active_parameters(self) -> int:
        """Parameters one token visits: routed experts counted ``top_k / experts``."""
        total = 0
        for block, n in self.blocks():
            for op in block.ops:
                top, experts = getattr(op, "top_k", 0), getattr(op, "experts", 0)
                for w in op.weights():
                    share = w.elements * top // experts if w.shard == "ep" and experts else w.elements
                    total += n * share
        return total

    @cached_property
    def reads_tokens(self) -> bool:
        """Whether any layer runs over a sequence of tokens (False: images or latents of a fixed size)."""
        return any(block.stream != "sample" for stack in self.stacks for block in stack.blocks)

    @cached_property
    def checkpoint_bytes(self) -> int | None:
        """Bytes of the stored weights, quantised as the file says; None where the file does not tell their dtype."""
        from foretell.arch.stored import checkpoint_bytes  # noqa: PLC0415  # it reads architectures

        return checkpoint_bytes(self)

    def blocks(self) -> Iterator[tuple[Block, int]]:
        """Every distinct block with the number of times it stands in the model."""
        yield self.embed, 1
        for stack in self.stacks:
            for block, n in zip(stack.blocks, stack.counts(), strict=True):
                if n:
                    yield block, n
        yield self.head, 1

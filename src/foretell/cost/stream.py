"""Formats of the stream between blocks: what one block hands on is what the next one reads.

Only autocast makes it vary.  Transformers add bf16 to an fp32 stream; a convolutional network hands bf16 from block
to block, as convolutions and batch norms return it (pytorch ``aten/src/ATen/autocast_mode.h``).
"""

from __future__ import annotations

from collections.abc import Callable

from foretell.arch.architecture import Architecture, Block

Emit = Callable[[Block, float], float]
"""Unit (bytes per element) of a block's output, from the unit of its input."""


def input_units(arch: Architecture, emit: Emit, default: float) -> dict[Block, float]:
    """Bytes per element of each block's input; the widest where a block stands in several places."""
    units: dict[Block, float] = {}
    made: dict[tuple[Block, float], float] = {}

    def run(block: Block, unit: float) -> float:
        if block.width == 0:  # it starts from the sample or the ids
            unit = default
        units[block] = max(units.get(block, 0.0), unit)
        if (block, unit) not in made:
            made[block, unit] = emit(block, unit) if block.ops else unit
        return made[block, unit]

    entry = run(arch.embed, default)
    unit = entry
    for stack in arch.stacks:
        if stack is arch.main and len(arch.stacks) > 1 and arch.family not in ("cnn", "vision", "diffusion"):
            unit = entry  # towers and encoders have streams of their own
        for i in stack.pattern:
            unit = run(stack.blocks[i], unit)
    run(arch.head, unit)
    return units


__all__ = ["input_units"]

"""The options of `fit`, as a table: name, what it takes, what it means. Values are checked in `_request`."""

from __future__ import annotations

from typing import Any, Final

import click

__all__ = ["FIT", "OUTPUT", "Grouped", "add"]


class Grouped(click.Option):
    """An option with the heading that it is listed under."""

    def __init__(self, *args: Any, group: str = "Options", **kwargs: Any) -> None:
        """Keep the heading."""
        super().__init__(*args, **kwargs)
        self.group = group


_FLAG: Final = ""
"""Takes no value."""

FIT: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "Machine": (
        ("--gpu", "NAME", "Accelerator: a catalog name or a file."),
        ("--gpus", "N", "Accelerators in all: dp x tp x pp x cp.  [default: 1]"),
        ("--gpus-per-node", "N", "Accelerators of one node, for host memory.  [default: 8]"),
        ("--headroom", "SHARE", "Memory to keep free, as 10% or 0.1.  [default: 10%]"),
    ),
    "Batch": (
        ("--micro-batch", "N", "Samples of one pass on one replica.  [default: 1]"),
        ("--global-batch", "N", "Samples of one optimizer step."),
        ("--grad-accum", "N", "Passes of one optimizer step.  [default: 1, or what fills --pp]"),
        ("--seq-len", "N", "Tokens of one sample.  [default: 4096, or the model's limit]"),
        ("--encoder-seq-len", "N", "Tokens of one encoder input.  [default: as --seq-len]"),
        ("--packing/--no-packing", _FLAG, "Samples are packed to --seq-len, or padded."),
        ("--max-sample-len", "N", "Padded: the longest sample, which decides."),
    ),
    "Parallelism": (
        ("--dp", "N", "Data parallelism.  [default: what --gpus leaves]"),
        ("--tp", "N", "Tensor parallelism.  [default: 1]"),
        ("--pp", "N", "Pipeline stages.  [default: 1]"),
        ("--vpp", "N", "Model chunks of one pipeline stage.  [default: 1]"),
        ("--cp", "N", "Context parallelism.  [default: 1]"),
        ("--ep", "N", "Expert parallelism, inside dp x cp x tp.  [default: 1]"),
        ("--etp", "N", "Tensor parallelism of experts.  [default: the framework's]"),
        ("--sp/--no-sp", _FLAG, "Sequence parallelism in the tp group.  [default: the framework's]"),
        ("--zero", "0|1|2|3", "ZeRO stage; 3 is full sharding.  [default: the framework's]"),
        ("--sharding", "NAME", "Who shards the states: ddp, fsdp2 ...  [default: the framework's]"),
        ("--hsdp-replicas", "N", "Replicas of a hybrid-sharded group.  [default: 1]"),
        ("--pp-layout", "N,N,...", "Layers of each pipeline stage.  [default: even]"),
        ("--schedule", "NAME", "Pipeline schedule.  [default: 1f1b, interleaved with --vpp]"),
    ),
    "Training": (
        ("--framework", "NAME", "Whose memory habits count: fsdp2, megatron-core ...  [default: generic]"),
        ("--precision", "NAME", "bf16 and fp16 are mixed, bf16-true is pure.  [default: bf16, or fp16 on a GPU without bf16]"),
        ("--optimizer", "NAME", "adamw, adamw8bit, adafactor, muon ...  [default: adamw]"),
        ("--optimizer-impl", "NAME", "fused, foreach or forloop.  [default: the framework's]"),
        ("--optimizer-in-backward", _FLAG, "The update runs inside the backward pass."),
        ("--recompute", "MODE", "Activation checkpointing: none, selective or full.  [default: none]"),
        (
            "--recompute-scope",
            "NAME",
            "full: layer, uniform, block; selective: op, modules, attention, layer.",
        ),
        ("--recompute-layers", "N", "Layers of a scope that counts them."),
        ("--recompute-modules", "A,B", "Modules of the scope modules."),
        ("--attention", "NAME", "flash, sdpa, te, flex, efficient or eager.  [default: the framework's]"),
        ("--loss", "NAME", "eager, chunked, fused, compiled, vocab-parallel.  [default: the framework's]"),
        ("--compile", _FLAG, "torch.compile."),
        ("--dropout", "P", "Overrides every dropout of the model."),
        ("--offload", "A,B", "Kept in host memory: optimizer, params, grads, activations."),
        (
            "--expandable-segments/--no-expandable-segments",
            _FLAG,
            "The allocator's.  [default: the framework's]",
        ),
    ),
    "Fine-tuning": (
        ("--lora-rank", "N", "Train low-rank adapters of this rank on a frozen base."),
        ("--lora-targets", "A,B", "Matrices that get one.  [default: all-linear]"),
        ("--lora-kind", "NAME", "lora or dora.  [default: lora]"),
        ("--lora-dropout", "P", "Dropout before an adapter.  [default: the framework's]"),
        ("--modules-to-save", "A,B", "Modules trained in full beside the adapters."),
        ("--quantization", "NAME", "Format of the frozen base: nf4, fp4 or int8."),
        ("--double-quant", _FLAG, "Quantise the base's scales too."),
        ("--trainable-fraction", "SHARE", "Share of the parameters that trains.  [default: 1]"),
    ),
    "Question": (
        ("--max", "WHAT", "micro-batch or seq-len: the largest, or the longest, that fits."),
        ("--min", "WHAT", "gpus: the fewest that suffice: up to one node, then whole nodes."),
        ("--allow-uncertain", _FLAG, "Take uncertain for a yes, also in --max and --min."),
        ("--no-advice", _FLAG, "Do not look for changes that would help."),
    ),
}
"""Heading -> (option, what it takes, help)."""

OUTPUT: Final = (
    ("--json", _FLAG, "Print one JSON object."),
    ("--quiet", _FLAG, "Print the verdict's line only."),
)


def add(command: click.Command, table: tuple[tuple[str, str, str], ...], group: str = "Options") -> None:
    """Add the options of a table to a command; each is text or a flag, None where it was not given."""
    for name, takes, text in table:
        names = [name, name.split("/")[0].lstrip("-").replace("-", "_")]
        kind: dict[str, Any] = {"metavar": takes} if takes else {"is_flag": True}
        command.params.append(Grouped(names, default=None, help=text, group=group, **kind))

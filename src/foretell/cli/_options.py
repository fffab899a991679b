"""The options of runs and servers, as tables: name, what it takes, what it means.

Values are checked in `_request` and `_serve_request`.
"""

from __future__ import annotations

from typing import Any, Final

import click

__all__ = ["FIT", "OUTPUT", "RUN", "SERVE", "TRAIN", "Grouped", "add", "names"]


class Grouped(click.Option):
    """An option with the heading that it is listed under."""

    def __init__(self, *args: Any, group: str = "Options", **kwargs: Any) -> None:
        """Keep the heading."""
        super().__init__(*args, **kwargs)
        self.group = group


_FLAG: Final = ""
"""Takes no value."""

Rows = tuple[tuple[str, str, str], ...]

RUN: Final[dict[str, Rows]] = {
    "Machine": (
        ("--gpu", "NAME", "Accelerator: a catalog name or a file."),
        ("--gpus", "N", "Accelerators in all: dp x tp x pp x cp.  [default: 1]"),
        ("--gpus-per-node", "N", "Accelerators of one node.  [default: 8]"),
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
        ("--pp-layout", "N,N,...", "Layers of each stage or chunk, or Megatron's letters: Et|(tt|)*6tL.  [default: even]"),
        ("--schedule", "NAME", "Pipeline schedule.  [default: 1f1b, interleaved with --vpp]"),
    ),
    "Training": (
        ("--framework", "NAME", "Whose habits count: fsdp2, megatron-core ...  [default: generic]"),
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
}
"""What a run is: heading -> (option, what it takes, help)."""

FIT: Final[dict[str, Rows]] = RUN | {
    "Question": (
        ("--max", "WHAT", "micro-batch or seq-len: the largest, or the longest, that fits."),
        ("--min", "WHAT", "gpus: the fewest that suffice: up to one node, then whole nodes."),
        ("--allow-uncertain", _FLAG, "Take uncertain for a yes, also in --max and --min."),
        ("--no-advice", _FLAG, "Do not look for changes that would help."),
    ),
}
"""The options of `fit`."""

_SYSTEM: Final = (
    ("--system", "NAME", "Machine and network of the catalog, in place of --gpu."),
    ("--nic-gbps", "N", "Gbit/s of one network card.  [default: the system's, or the usual]"),
    ("--nics-per-node", "N", "Network cards of one node.  [default: the system's, or the usual]"),
    ("--congestion", "X", "Divides the network's bandwidth.  [default: 1]"),
    ("--algorithm", "NAME", "Force ring, tree, nvls, hierarchical or deepep.  [default: the quickest]"),
)
_SOFTWARE: Final = (
    ("--software-date", "YYYY-MM", "Month of the framework's version.  [default: today's]"),
    ("--cuda-graphs", "NAME", "Captured: none, partial, layer or full.  [default: none]"),
    ("--tp-overlap/--no-tp-overlap", _FLAG, "Pipeline tp exchanges with products.  [default: the framework's]"),
    ("--dispatcher", "NAME", "How routed tokens travel: alltoall or flex.  [default: flex]"),
    ("--efficiency", "SHARE", "calibrated, or one share of the peak for all.  [default: calibrated]"),
)
_RANKS: Final = (
    ("--imbalance", "X", "Tokens of the busiest expert rank over the mean.  [default: 1]"),
    (
        "--expert-spread",
        "X",
        "Variation of the experts' loads, from which the busiest rank's is expected.  [default: 0]",
    ),
    ("--jitter", "SHARE", "Standard deviation of a rank's step, as 2% or 0.02.  [default: 0]"),
    ("--loader-time", "TIME", "Time to deliver the samples of one step.  [default: none]"),
)

WHOLE: Final = "Whole run (with --tokens)"
"""Heading of the options that say how a run is operated."""

TRAIN: Final[dict[str, Rows]] = {
    "Machine": (*RUN["Machine"], *_SYSTEM),
    **{heading: rows for heading, rows in RUN.items() if heading not in ("Machine", "Training", "Fine-tuning")},
    "Training": (*RUN["Training"], *_SOFTWARE),
    "Fine-tuning": RUN["Fine-tuning"],
    "Ranks": _RANKS,
    WHOLE: (
        ("--region", "NAME", "Where: a region of foretell catalog list grids, or a file.  [default: not known]"),
        ("--operator", "NAME", "Whose building: google, meta, aws, microsoft ... (its PUE and WUE)."),
        ("--boundary", "NAME", "Grid factor: operational, lifecycle or market.  [default: operational, if known]"),
        ("--pue", "X", "Energy of the building over that of its IT, at least 1.  [default: the operator's]"),
        ("--carbon-intensity", "G", "Grams of CO2-equivalent a kWh.  [default: the region's]"),
        ("--node-power", "POWER", "Mean power of a node at work: 7.7kW.  [default: as measured]"),
        ("--failure-rate", "RATE", "Failures per 1,000 node-days: 3.8 or 2.3,6.5.  [default: public fleets']"),
        ("--record", "NAME", "A fleet of foretell catalog list failures whose rate is taken."),
        ("--recovery-time", "TIME", "From a failure until training goes on.  [default: 5 to 20 min]"),
        ("--checkpoint-interval", "HOURS", "Work between checkpoints, or 30min.  [default: what loses least]"),
        ("--checkpoint-mode", "NAME", "sync, async or memory.  [default: sync]"),
        ("--storage-bandwidth", "RATE", "What the storage takes in from all: 200GB/s.  [default: 1 GB/s a rank]"),
        ("--own", _FLAG, "Money of owning the machines, not of renting them."),
        ("--price", "USD", "Rent of one GPU and hour.  [default: the median of dated list prices]"),
        ("--provider", "NAME", "Whose list price: aws, lambda ..."),
        ("--price-kind", "NAME", "on-demand, reserved, spot or capacity-block.  [default: on-demand]"),
        ("--node-price", "USD", "Price of one node, with --own."),
        ("--samples", "N", "Samples of the band.  [default: 10000]"),
        ("--seed", "N", "Of the samples.  [default: 0]"),
        ("--plot", "FILE", "Draw the run: a .png or .svg."),
    ),
    "Question": (
        ("--tokens", "N", "The whole run on so many: 15T, 300B, 1e12: days, failures, money, energy, carbon."),
        ("--measured-step", "TIME", "Seconds of a real step: everything is re-scaled to it."),
        ("--operators", _FLAG, "Show the roofline of the main layer's operators."),
        ("--no-advice", _FLAG, "Do not look for changes that would help."),
    ),
}
"""The options of `train`."""

SERVE: Final[dict[str, Rows]] = {
    "Machine": (
        ("--gpu", "NAME", "Accelerator: a catalog name or a file; with --qps also a list.  [default: h100]"),
        ("--system", "NAME", "Machine and network of the catalog, in place of --gpu."),
        ("--gpus-per-node", "N", "Accelerators of one node.  [default: 8, or the system's]"),
    ),
    "Engine": (
        ("--engine", "NAME", "vllm, sglang, tensorrt-llm, lmdeploy, llama.cpp, tgi or other.  [default: vllm]"),
        ("--engine-version", "TEXT", "As the engine prints it.  [default: the newest known]"),
        ("--weights", "NAME", "Format of the weights: bf16, fp8, int4, nvfp4, q4_k_m ...  [default: the file's, or bf16]"),
        ("--activations", "NAME", "Format that products run in.  [default: the weights', or 16 bits]"),
        ("--kv-dtype", "NAME", "Format of keys and values: bf16, fp8, int8 ...  [default: 16 bits]"),
        ("--enforce-eager", _FLAG, "No CUDA graphs."),
        ("--efficiency", "SHARE", "calibrated, or one share of the peak for all.  [default: calibrated]"),
    ),
    "Layout": (
        ("--tp", "N", "Tensor parallelism.  [default: 1]"),
        ("--pp", "N", "Pipeline stages.  [default: 1]"),
        ("--dp", "N", "Data parallelism.  [default: 1]"),
        ("--dp-kind", "NAME", "replica: copies apart; attention: experts spread over all ranks.  [default: replica]"),
        ("--ep", "N", "Ranks that share the routed experts, of tp x dp.  [default: 1]"),
    ),
    "Scheduler": (
        ("--max-num-seqs", "N", "Requests that run at once.  [default: the engine's]"),
        ("--max-num-batched-tokens", "N", "Tokens of one step.  [default: the engine's]"),
        ("--max-model-len", "N", "Tokens of the longest request.  [default: the model's, or what fits]"),
        ("--gpu-memory-utilization", "SHARE", "The engine's memory flag, whatever its name.  [default: the engine's]"),
        ("--block-size", "N", "Tokens of one KV block.  [default: the engine's]"),
        ("--chunked-prefill/--no-chunked-prefill", _FLAG, "Prompts are read in chunks.  [default: the engine's]"),
    ),
    "Speculation": (
        ("--speculative", "METHOD", "Who proposes tokens: draft, mtp or eagle.  [default: draft, with --draft]"),
        ("--draft", "MODEL", "Model that proposes them."),
        ("--draft-tokens", "N", "Tokens that are proposed in a step.  [default: 4, mtp 1]"),
        ("--acceptance", "P", "Probability that a proposed token is accepted.  [default: 0.7]"),
        ("--accepted-length", "X", "Tokens that a step makes on average, in place of --acceptance."),
    ),
    "Disaggregation": (
        ("--prefill-gpus", "N", "GPUs that only read prompts; those of --tp, --pp and --dp then only decode."),
        ("--prefill-gpu", "NAME", "Their kind.  [default: as --gpu]"),
        ("--prefill-tp", "N", "Their tensor parallelism.  [default: as --tp]"),
        ("--transfer-gbps", "N", "Gbit/s at which the keys and values of a prompt travel.  [default: one network card's]"),
    ),
    "Load": (
        ("--input-tokens", "N", "Mean tokens of a prompt.  [default: 1024]"),
        ("--output-tokens", "N", "Mean tokens of an answer.  [default: 256]"),
        ("--cached-tokens", "N", "Of the prompt, found in the prefix cache.  [default: 0]"),
        ("--longest-output", "N", "Answers vary and are cut here.  [default: all are equally long]"),
        ("--input-cv", "X", "Variation of prompts: standard deviation over mean.  [default: 0]"),
        ("--concurrency", "N", "Closed loop: requests in flight.  [default: 32, or what fits]"),
        ("--batch", "N", "One batch, started together."),
        ("--rate", "QPS", "Open loop: requests a second."),
        ("--arrival-cv", "X", "Variation of the times between arrivals: 1 Poisson, 0 constant.  [default: 1]"),
        ("--burst", "PEAK,ON,PERIOD", "On top of --rate: 40,5s,60s is 40 a second for 5 s of every 60 s."),
        ("--requests", "N", "Requests in all; alone: all are there at the start."),
        ("--trace", "FILE", "Requests of a .csv or .jsonl file: arrivals and lengths."),
        ("--trace-speed", "X", "Arrivals of the trace come this many times as fast.  [default: 1]"),
    ),
    "Question": (
        ("--slo", "TARGETS", "Targets, as ttft=500ms,itl=50ms (p99), p50-ttft=200ms, e2e=10s."),
        ("--qps", "QPS", "--rate, and how many GPUs it takes; --slo with --rate or --trace asks the same."),
        ("--max-gpus", "N", "GPUs that are allowed."),
        ("--objective", "NAME", "Best fleet: gpus (fewest), cost or latency.  [default: gpus, or cost with --price]"),
        ("--price", "NAME=USD,...", "Of one GPU and hour: h100=2.5,a100=1.2."),
        ("--simulate", _FLAG, "Play the load event by event: percentiles."),
        ("--seed", "N", "Of the simulation.  [default: 0]"),
        ("--plot", "FILE", "Draw the curve over concurrency (.png or .svg)."),
        ("--no-advice", _FLAG, "Do not look for what would make it fit."),
    ),
}
"""The options of `serve`."""

OUTPUT: Final = (
    ("--json", _FLAG, "Print one JSON object."),
    ("--quiet", _FLAG, "Print the verdict's line only."),
)


def names(table: dict[str, Rows]) -> tuple[str, ...]:
    """Return the names of the values that the options of a table give."""
    return tuple(_name(option) for rows in table.values() for option, _, _ in rows)


def _name(option: str) -> str:
    return option.split("/", maxsplit=1)[0].lstrip("-").replace("-", "_")


def add(command: click.Command, table: Rows, group: str = "Options") -> None:
    """Add the options of a table to a command; each is text or a flag, None where it was not given."""
    for name, takes, text in table:
        kind: dict[str, Any] = {"metavar": takes} if takes else {"is_flag": True}
        command.params.append(Grouped([name, _name(name)], default=None, help=text, group=group, **kind))

"""The options of `reliability`, `checkpoint`, `cost` and `carbon`; their values are checked in `_operations` and the verbs."""

from __future__ import annotations

from typing import Final

from foretell.cli._options import Rows

__all__ = ["CARBON", "CHECKPOINT", "COST", "RELIABILITY"]

_FLEET: Final[Rows] = (
    ("--system", "NAME", "Machine of the catalog: dgx-h100, aws-p5-48xlarge ..."),
    ("--nodes", "N", "How many of them.  [default: the system's, or 1]"),
    ("--gpu", "NAME", "Accelerator, in place of --system: a catalog name or a file."),
    ("--gpus", "N", "Accelerators in all.  [default: those of --nodes]"),
    ("--gpus-per-node", "N", "Accelerators of one node.  [default: 8, or the system's]"),
)
_DURATION: Final[Rows] = (
    ("--days", "DAYS", "How long, in days of wall time.  [default: 30]"),
    ("--hours", "HOURS", "... or in hours."),
)
_POWER: Final[Rows] = (
    ("--regime", "NAME", "What the machines do: training, prefill, decode or idle.  [default: training]"),
    ("--node-power", "WATTS", "Mean of a node at work: 8kW or 8000.  [default: as measured, by --regime]"),
)

RELIABILITY: Final[dict[str, Rows]] = {
    "Machines": _FLEET,
    "Job": (
        *_DURATION,
        ("--checkpoint-time", "TIME", "Training stands still so long for a checkpoint.  [default: 60s]"),
        ("--interval", "HOURS", "Work between two checkpoints: 2, 2h or 30min.  [default: the optimum]"),
        ("--lag", "TIME", "The save goes on so long beside training until it is safe.  [default: 0]"),
        ("--recovery-time", "TIME", "From a failure until training goes on.  [default: 5 to 20 min]"),
    ),
    "Failures": (
        ("--failure-rate", "X", "Per 1,000 node-days: one number, or LOW-HIGH.  [default: public fleets']"),
        ("--mtbf", "HOURS", "Mean time between failures of the whole job, in place of a rate: 8, 8h or 3d."),
        ("--record", "NAME", "One fleet's rate: foretell catalog list failures."),
        ("--causes", "NAME", "Which failures of public fleets count: infrastructure, 'hardware only' ..."),
        ("--weibull-shape", "X", "Below 1: fresh nodes fail more often; for the chance of a failure.  [default: 1]"),
        ("--spares", "N", "Nodes held ready; needs --repair-time.  [default: 0]"),
        ("--repair-time", "HOURS", "Until a failed node is back: 24, 24h or 2d."),
    ),
}
"""The options of `reliability`."""

CHECKPOINT: Final[dict[str, Rows]] = {
    "Run": (
        ("--gpu", "NAME", "Accelerator: its link to the host is what a copy takes.  [default: h100]"),
        ("--optimizer", "NAME", "adamw, adamw8bit, adafactor, muon ...  [default: adamw]"),
        ("--precision", "NAME", "bf16 and fp16 are mixed, bf16-true is pure.  [default: bf16, or fp16 on a GPU without bf16]"),
        ("--framework", "NAME", "Whose formats count: fsdp2, megatron-core ...  [default: generic]"),
        ("--zero", "0|1|2|3", "ZeRO stage.  [default: the framework's]"),
        ("--lora-rank", "N", "Low-rank adapters of this rank on a frozen base."),
        ("--devices", "N", "Devices that hold the states in equal shares.  [default: as many as write]"),
    ),
    "Saving": (
        ("--interval", "HOURS", "Work between two checkpoints: 4, 2h or 30min.  [default: 4h]"),
        ("--mode", "NAME", "sync: training waits; async: it waits for the copy to the host; memory.  [default: sync]"),
        ("--format", "NAME", "sharded: each writer its own files; consolidated: one gathers all.  [default: sharded]"),
        ("--content", "NAME", "full, or the weights alone.  [default: full]"),
        ("--keep", "N", "Finished checkpoints that stay on the storage.  [default: 1]"),
    ),
    "Storage": (
        ("--writers", "N", "Processes that write together.  [default: 1]"),
        ("--writer-bandwidth", "RATE", "Of one of them: 2GB/s.  [default: 1 GB/s, 0.16 to 2]"),
        ("--filesystem", "GB/S", "What the storage takes in at most, GB (1e9) a second.  [default: 500, 100 to 2000]"),
        ("--read-bandwidth", "RATE", "Of all readers together.  [default: slower than saving, as published]"),
    ),
}
"""The options of `checkpoint`."""

COST: Final[dict[str, Rows]] = {
    "Machines": _FLEET,
    "Time": (
        *_DURATION,
        ("--utilisation", "SHARE", "Of the hours that work; idle ones cost too.  [default: 100%]"),
        ("--tokens-per-second", "N", "Of all machines together: gives the price of a million."),
    ),
    "Owning": (
        ("--own/--rent", "", "Whose cost is asked for.  [default: --own]"),
        ("--node-price", "USD", "Of a whole node, without tax.  [default: the catalog's]"),
        ("--network-price", "USD", "Of a node's share of the network.  [default: its ports and optics]"),
        ("--life", "YEARS", "Until what was bought is written off.  [default: 4, 3 to 6]"),
        ("--discount", "SHARE", "Interest a year.  [default: 8%]"),
        ("--residual", "SHARE", "Of the price that is left then.  [default: 0]"),
        ("--maintenance", "SHARE", "Of the price, a year.  [default: 5%]"),
        ("--staff", "USD", "A year.  [default: 0]"),
        ("--colocation", "USD", "A month and kW that nodes are rated at, beside the electricity.  [default: 0]"),
    ),
    "Electricity": (
        ("--region", "NAME", "Grid or cloud region, for its tariff: us-iowa, europe-north1 ..."),
        ("--kwh-price", "USD", "Of a kWh.  [default: the region's, or 0.12]"),
        ("--pue", "X", "Energy of the building over that of its IT.  [default: 1.25, 1.08 to 1.54]"),
        ("--operator", "NAME", "Whose PUE: google, meta, aws, microsoft, public-cloud, survey."),
        *_POWER,
    ),
    "Renting": (
        ("--price", "USD", "Of one accelerator and hour.  [default: the median of providers]"),
        ("--provider", "NAME", "Whose price: aws, gcp, azure, lambda ..."),
        ("--price-kind", "NAME", "on-demand, reserved, spot or capacity-block.  [default: on-demand]"),
    ),
}
"""The options of `cost`."""

CARBON: Final[dict[str, Rows]] = {
    "Machines": _FLEET,
    "Work": (
        *_DURATION,
        ("--utilisation", "SHARE", "Of the time at work; the rest is idle.  [default: 100%]"),
        *_POWER,
        ("--life", "YEARS", "Of the servers, over which their making is spread.  [default: 5, 4 to 6]"),
    ),
    "Place": (
        ("--region", "NAME", "Grid or cloud region: us-iowa, france, us-east-1 ...  [default: the average of the US]"),
        ("--boundary", "NAME", "operational, lifecycle or market.  [default: operational where it is known]"),
        ("--carbon-intensity", "G", "Grams of CO2-equivalent a kWh, in place of the region's."),
        ("--operator", "NAME", "Whose PUE and WUE: google, meta, aws, microsoft, public-cloud, survey."),
        ("--pue", "X", "Energy of the building over that of its IT.  [default: 1.25, 1.08 to 1.54]"),
        ("--wue", "L", "Litres of water on the site a kWh of IT energy.  [default: 0.33, 0.15 to 1.15]"),
    ),
}
"""The options of `carbon`."""

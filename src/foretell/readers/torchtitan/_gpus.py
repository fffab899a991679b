"""How a torchtitan run is spread over GPUs: degrees, sharding, the pipeline's schedule.

Source: pytorch/torchtitan ``config/job_config.py`` (until 9810191bb), ``config/configs.py`` (b5bcd76c6),
``distributed/parallel_dims.py``, ``distributed/pipeline_parallel.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.readers.torchtitan._run import Run

__all__ = ["parallelism"]

_SCHEDULES: Final = {
    "gpipe": ("gpipe", 1),
    "1f1b": ("1f1b", 1),
    "interleaved1f1b": ("interleaved-1f1b", 2),
    "interleaved_1f1b": ("interleaved-1f1b", 2),
    "zbvzerobubble": ("zb-v", 2),
    "dualpipev": ("dualpipe", 2),
}
"""Schedules of torch.distributed.pipelining, with the model chunks of a rank."""


def parallelism(run: Run) -> None:
    """Take the degrees; what is left of the GPUs shards the model."""
    b, known = run.b, run.config
    b.default("framework", "torchtitan", "torchtitan's trainer")
    rest = 1
    for name, key in (("tp", "tensor_parallel_degree"), ("pp", "pipeline_parallel_degree"), ("cp", "context_parallel_degree")):
        found = run.degree(key)
        size = known.tp if found is None and known is not None and name == "tp" else 1 if found is None else found.whole()
        rest *= size
        if found is not None:
            b.set(name, size, found)
        b.default(name, size, run.whose)
    for name, key in (("ep", "expert_parallel_degree"), ("etp", "expert_tensor_parallel_degree")):
        found = run.degree(key)
        if found is not None and (name == "ep" or b.degree("ep") > 1):
            b.set(name, found.whole(), found)
        elif found is not None:
            b.harmless(found)
        elif name == "ep":
            b.default(name, 1 if known is None else known.ep, run.whose)
    _data(run, rest)
    _pipeline(run)
    overlap = run.on("parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel",
                     "compile.enable_async_tensor_parallel")  # fmt: skip
    if overlap is not None:
        b.set("tp_overlap", True, overlap)
    elif known is not None and known.overlap:
        b.default("tp_overlap", True, run.whose)
    divided = run.values.get("parallelism.enable_sequence_parallel")
    if divided is not None and not divided.flag():
        b.set("sp", False, divided)
    elif divided is not None:
        b.harmless(divided)


def _data(run: Run, rest: int) -> None:
    b = run.b
    copies, shards = (
        run.degree("data_parallel_replicate_degree"),
        run.degree("data_parallel_shard_degree", "data_parallel_degree"),
    )
    replicas = 1 if copies is None else copies.whole()
    parts = -1 if shards is None else shards.whole(minimum=-1)
    whole = run.degree("fsdp_reshard_after_forward")
    if parts == 1 and b.degree("cp") == 1:
        assert shards is not None  # noqa: S101  # it says so
        b.set("zero", 0, shards, "replicas: DistributedDataParallel")
        b.set("sharding", "ddp", shards)
    elif replicas > 1:
        assert copies is not None  # noqa: S101  # it says so
        b.set("hsdp_replicas", replicas, copies)
    if parts > 0 and b.given("gpus") is None and shards is not None:
        b.set("gpus", parts * replicas * rest, shards, "the product of the sizes of all groups")
    word = "default" if whole is None else whole.text().strip().casefold()
    if word not in ("default", "always", "never"):
        assert whole is not None  # noqa: S101
        raise whole.error("is no way to reshard", allowed=("default", "always", "never"))
    if word == "never" and whole is not None and b.given("zero") is None:
        b.set("zero", 2, whole, "weights stay whole from forward to backward")
    elif word == "always" and whole is not None and b.degree("pp") > 1:
        b.doubt(whole, "both", "weights are resharded after each micro-batch, and counted as whole in a pipeline")
    elif whole is not None:
        b.harmless(whole)
    b.default("zero", 3, f"{run.whose}: FSDP2")
    for found in (copies, shards):
        if found is not None and all(s.origin.key != found.key for s in b.settings.values()):
            b.harmless(found)


def _pipeline(run: Run) -> None:
    b, known = run.b, run.config
    found, per = run.degree("pipeline_parallel_schedule"), run.degree("pipeline_parallel_layers_per_stage")
    spare = [run.degree(f"pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")]
    if b.degree("pp") == 1:
        for one in (found, per, *spare):
            if one is not None:
                b.harmless(one)
        return
    word = found.text().strip().casefold() if found is not None else (known.schedule if known else "1F1B").casefold()
    if word not in _SCHEDULES:
        assert found is not None  # noqa: S101  # defaults are known
        b.doubt(found, "both", "a schedule that is not known here: counted as interleaved 1F1B")
    name, chunks = _SCHEDULES.get(word, ("interleaved-1f1b", 2))
    why = f"{chunks} model chunks a rank" if chunks > 1 else ""
    if found is not None and word in _SCHEDULES:
        b.set("schedule", name, found)
    b.default("schedule", name, run.whose)
    if chunks > 1 and found is not None:
        b.set("vpp", chunks, found, why)
    b.default("vpp", chunks, run.whose)
    if per is not None:
        b.doubt(per, "both", "layers of a stage are given, and counted as even")
    if any(one is None or one.whole(minimum=0) for one in spare):
        why = "the first and the last stage have fewer layers than the others, and are counted as even"
        b.doubt_default("parallelism.pipeline_parallel_first_stage_less_layers", "both", why)
    for one in spare:
        if one is not None:
            b.harmless(one)

"""What a training row leaves out: each thing is filled from its software's default of the time, and said.

Nothing that decides the answer is filled without a note; what has no default is left to the reader, which skips the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foretell.errors import InputError
from foretell.evidence.row_run import Skip
from foretell.evidence.training_frameworks import CHUNKS_OF_ONE, DUALPIPE, MEGATRON, has, words_of
from foretell.recipe.parallelism import parse_layout
from foretell.recipe.profile import Profile

__all__ = ["Draft", "completed", "prediction_layers"]

_SEQUENCE_PARALLEL: Final = "2022-05"
"""Since when Megatron-LM divides the sequence over the tensor group (arXiv 2205.05198)."""
_FLASH: Final = "2023-01"
"""Since when Megatron-LM calls flash attention (``--use-flash-attn``)."""
_EXPERT_TP: Final = "2024-10"
"""Since when experts have a tensor degree of their own (Megatron-Core 0.9, ``expert_tensor_parallel_size``)."""
_FSDP: Final = ("maxtext", "nemo-automodel")
"""Frameworks that shard everything unless told otherwise, and whose profile does not say so."""
_UNEVEN: Final = ("embedding", "loss", "layer", "stage", "account")
"""Words of a layout that is told rather than written."""


@dataclass(slots=True)
class Draft:
    """Copies of a row's blocks that are filled in place, and what is said of each filling."""

    training: dict[str, Any]
    parallel: dict[str, Any]
    config: Mapping[str, Any]
    framework: str
    date: str
    gpus: int
    profile: Profile
    words: str
    """What the row says of software that has no name of its own in the schema."""
    notes: list[str] = field(default_factory=list)

    @property
    def megatron(self) -> bool:
        return self.framework in MEGATRON

    @property
    def replica(self) -> int:
        """Ranks that hold one copy of the model."""
        return int(self.parallel.get("tp") or 1) * int(self.parallel.get("pp") or 1) * int(self.parallel.get("cp") or 1)


def completed(row: Mapping[str, Any], chosen: Profile) -> Draft:
    """Return a row's blocks with everything filled."""
    software, hardware = row["software"], row["hardware"]
    parallel = {key: value for key, value in row["parallel"].items() if value is not None}
    training = {key: value for key, value in row["training"].items() if value is not None}
    training["dtypes"] = {key: value for key, value in (training.get("dtypes") or {}).items() if value is not None}
    draft = Draft(
        training,
        parallel,
        row["model"]["config"],
        software["framework"],
        _date(row),
        int(hardware["gpus"]),
        chosen,
        words_of(row),
    )
    if not software.get("date"):
        draft.notes.append(f"date of the software not stated: {draft.date or 'today'}")
    _degrees(draft)
    _batch(draft)
    _formats(draft)
    _sequence(draft)
    _attention(draft)
    _recompute(draft)
    _sharding(draft)
    _schedule(draft)
    _layout(draft, prediction_layers(row))
    _experts(draft)
    _overlap(draft)
    kept = sorted(key for key, value in (training.get("offload") or {}).items() if value)
    if kept:
        draft.notes.append(f"{' and '.join(kept)} in host memory: their copies are taken as hidden")
    return draft


def prediction_layers(row: Mapping[str, Any]) -> int:
    """Multi-token-prediction layers: DeepSeek-V3's own recipe trains one (arXiv 2412.19437, section 2.2)."""
    given = row["model"]["config"].get("num_nextn_predict_layers")
    trained = row["software"]["framework"] in ("megatron-bridge", "other")
    return int(given or 0) if trained else 0


def _date(row: Mapping[str, Any]) -> str:
    """When the software was current: as stated, or when the figures appeared."""
    return str(row["software"].get("date") or row["source"].get("date") or "")


def _degrees(d: Draft) -> None:
    """Make the degrees multiply to the devices: some tables count context or expert ranks in the data-parallel ones."""
    p, cp, ep = d.parallel, int(d.parallel.get("cp") or 1), int(d.parallel.get("ep") or 1)
    dp = int(p["dp"])
    if dp * d.replica == d.gpus:
        return
    if dp * d.replica == d.gpus * cp and dp % cp == 0:
        p["dp"] = dp // cp
        d.notes.append(f"dp = {dp} counts the {cp} context-parallel ranks")
    elif dp * ep * d.replica == d.gpus:
        p["dp"] = dp * ep
        d.notes.append(f"dp = {dp} leaves the {ep} expert-parallel ranks out")
    else:
        product = f"dp x tp x pp x cp = {dp} x {p.get('tp', 1)} x {p.get('pp', 1)} x {cp} = {dp * d.replica}"
        raise Skip(f"underspecified: {product} is not the number of devices, {d.gpus}")


def _batch(d: Draft) -> None:
    """Micro-batches of a step, where they are not stated or do not make the global batch."""
    t = d.training
    batch, given = t.get("global_batch"), t.get("grad_accum")
    each = int(t["micro_batch"]) * int(d.parallel["dp"])
    if batch is None:
        if given is None:
            raise Skip("underspecified: neither global_batch nor grad_accum")
        return
    if given is not None and each * int(given) == batch:
        return
    count, rest = divmod(int(batch), each)
    if rest or not count:
        raise Skip(f"underspecified: a global batch of {batch} is no multiple of micro_batch x dp = {each}")
    if given is not None:
        d.notes.append(f"grad_accum = {given} does not make the global batch: {count}")
    t["grad_accum"] = count


def _recompute(d: Draft) -> None:
    """DeepSeek's trainer computes norms and the up-projections of latent attention again (arXiv 2412.19437, section 3.2.3)."""
    if "recompute" not in d.training and has(d.words, DUALPIPE):
        d.training["recompute"] = {"mode": "selective", "scope": "modules", "modules": ["layernorm", "mla_up_proj"]}
        d.notes.append("recompute not stated: norms and up-projections of attention, as this trainer has it")


def _formats(d: Draft) -> None:
    """Take what NeMo's and Megatron-Bridge's recipes have."""
    kinds = d.training["dtypes"]
    if kinds.get("compute") == "int8":
        raise Skip("not-modelled: products in int8")
    if d.profile.name == "megatron-bridge":
        # bf16_mixed: gradients reduced in the model's format (grad_reduce_in_fp32=False)
        d.training["dtypes"] = {"grad": "bf16", "optim": "fp32", **kinds}


def _sequence(d: Draft) -> None:
    """Sequence parallelism, by framework and date."""
    like = d.megatron or (d.profile.name == "generic" and d.framework != "maxtext")
    if "sp" in d.parallel or int(d.parallel.get("tp") or 1) == 1 or not like:
        return
    on = not d.date or d.date >= _SEQUENCE_PARALLEL
    d.parallel["sp"] = on
    d.notes.append(f"sequence parallelism not stated: {'on' if on else 'off, as before it was written'}")


def _attention(d: Draft) -> None:
    if "attention" not in d.training and d.megatron and d.date and d.date < _FLASH:
        d.training["attention"] = "eager"
        d.notes.append("attention not stated: scores in memory, as before Megatron-LM called flash attention")


def _sharding(d: Draft) -> None:
    """Who shards what: FSDP where that is the framework's default, and Megatron's own word for it."""
    p = d.parallel
    stated = {"zero", "sharding"} & p.keys()
    if d.framework in _FSDP and not stated and p["dp"] > 1:
        p["zero"] = 3
        d.notes.append(f"sharding not stated: FSDP, the default of {d.framework}")
    if d.profile.megatron and (p.get("zero") or 0) >= 2 and p.get("sharding") != "megatron-fsdp":
        d.notes.append(f"ZeRO stage {p['zero']} on Megatron-Core as its own FSDP")
        p["zero"], p["sharding"] = 3, "megatron-fsdp"


def _schedule(d: Draft) -> None:
    p = d.parallel
    if int(p.get("pp") or 1) == 1:
        p.pop("vpp", None)
        p.pop("schedule", None)
        p.pop("pp_layout", None)
    elif p.get("schedule") == "interleaved-1f1b" and (p.get("vpp") or 1) == 1 and not has(d.words, CHUNKS_OF_ONE):
        raise Skip("underspecified: an interleaved schedule without its chunks a rank (vpp)")
    elif "schedule" not in p and "vpp" not in p and has(d.words, DUALPIPE):
        p["schedule"] = "dualpipe"
        d.notes.append("schedule not stated: DualPipe, this trainer's own")
    elif "vpp" not in p and p.get("schedule") != "1f1b" and has(d.words, CHUNKS_OF_ONE):
        p["vpp"] = max(1, -(-(_layers(d) + 2) // int(p["pp"])))
        d.notes.append(f"vpp not stated: {p['vpp']}, one layer a chunk")


def _layout(d: Draft, prediction: int) -> None:
    """Layers of each chunk, where the row tells them in words or they do not come out even."""
    p = d.parallel
    layers = _layers(d)
    chunks = int(p.get("pp") or 1) * int(p.get("vpp") or 1)
    if chunks == 1:
        return
    given = p.get("pp_layout")
    if given is not None:
        try:
            parse_layout(given)
        except InputError:
            if not any(word in given.casefold() for word in _UNEVEN):
                raise
            del p["pp_layout"]
            given = None
    elif not layers or not (layers % chunks if d.profile.megatron else layers < chunks or d.words):
        return
    if given is None and layers + 2 + prediction >= chunks:  # more chunks than that are refused where the run is priced
        p["pp_layout"] = _balanced(layers, chunks, prediction)
        if layers % chunks:
            d.notes.append("layers of the stages: embedding and loss count as one each")


def _layers(d: Draft) -> int:
    return next((int(d.config[key]) for key in ("num_hidden_layers", "n_layer", "n_layers") if d.config.get(key)), 0)


def _balanced(layers: int, chunks: int, prediction: int) -> str:
    """Layers of each chunk where the embedding, the loss and every prediction layer count as one (Megatron-Core
    ``account_for_embedding_in_pipeline_split``, ``account_for_loss_in_pipeline_split``)."""
    units = layers + 2 + prediction
    sizes = [units // chunks + (i < units % chunks) for i in range(chunks)]
    sizes[0] -= 1
    sizes[-1] -= 1 + prediction
    while sizes[-1] < 0:
        sizes[-1] += 1
        sizes[-2] -= 1
    return ",".join(map(str, sizes))


def _experts(d: Draft) -> None:
    """Expert tensor parallelism: none where recipes can choose it, the dense layers' before they could."""
    p = d.parallel
    if int(p.get("ep") or 1) == 1 or p.get("etp") or not (d.megatron or d.profile.name == "generic"):
        return
    old = d.megatron and d.date and d.date < _EXPERT_TP
    p["etp"] = int(p.get("tp") or 1) if old else 1
    if old and p["etp"] > 1:
        d.notes.append("experts are divided by tp too, as before they had a degree of their own")


def _overlap(d: Draft) -> None:
    if d.framework == "megascale" and "tp_comm_overlap" not in d.parallel:
        d.parallel["tp_comm_overlap"] = True

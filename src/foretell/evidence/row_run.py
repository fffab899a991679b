"""What a memory row says about its run: framework, recipe and parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretell.recipe.optimizers import optimizer
from foretell.recipe.parallelism import Parallelism, parse_layout
from foretell.recipe.profile import Profile
from foretell.recipe.profiles import profile
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe


class Skip(Exception):  # noqa: N818  (not an error: a row that is left out, with its reason)
    """A row that cannot be scored: ``not-modelled: ...`` or ``underspecified: ...``."""


_FRAMEWORKS = {
    "deepspeed": "deepspeed",
    "fsdp1": "fsdp1",
    "fsdp2": "fsdp2",
    "hf-trainer": "hf-trainer",
    "litgpt": "litgpt",
    "megatron-bridge": "megatron-bridge",
    "megatron-core": "megatron-core",
    "megatron-deepspeed": "megatron-deepspeed",
    "megatron-lm": "megatron-core",
    "nanotron": "nanotron",
    "nemo": "megatron-bridge",
    "torchao": "torchao",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
}
"""Profile by the name in ``software.framework``."""
_RECIPES: tuple[tuple[str, dict[str, str]], ...] = (
    ("Moonlight-16B", {"grad": "bf16", "master": "fp32", "optim": "bf16"}),  # moonlight/h100/moonlight_16b.py
)
"""Formats of a model's only pretraining recipe in Megatron-Bridge (src/megatron/bridge/recipes), by the model's name."""
_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bf16_master_weight", {"reduce_bucket": 50_000_000}),  # deepspeedai/DeepSpeedExamples .../configs/baseline.json
    ("LOMO", {"live_parameters": 100_000_000, "sub_group": 100_000_000}),  # OpenLMLab/LOMO config/ds_config.json
)
"""Settings in a source's published configuration that a row has no field for, by a part of the source's name."""
_RANKED = ("lora", "qlora", "dora")
_RANKLESS = ("adapter", "adapter-v2", "ia3", "ln-tuning")
"""Adapters that rows may name: with a rank and targets, and without."""


def framework_of(row: Mapping[str, Any]) -> str:
    """The profile that a row's software names."""
    software = row["software"]
    name = software["framework"]
    if "fsdp_qlora" in str(software.get("version", "")):
        return "fsdp-qlora"
    if name == "other":
        text = f"{software.get('name', '')} {software.get('version', '')}".lower()
        if "measure_memory.py" in text:  # tools/measure_memory.py: its loop keeps the loss alone
            return "hf-trainer"
        if "peft" in text or "transformers" in text:
            return "peft"
        if "torchrun_main.py" in text:  # GaLore's pre-training script: keeps the loss alone, as the Trainer does
            return "hf-trainer"
        if "mmsegmentation" in text:
            return "mmseg"
        if "thunder" in text:
            return "thunder"
        raise Skip(f"not-modelled: framework {software.get('name') or software.get('version') or 'other'!r}")
    if name not in _FRAMEWORKS:
        raise Skip(f"not-modelled: framework {name!r}")
    return _FRAMEWORKS[name]


@dataclass(frozen=True, slots=True)
class _Row:
    """The parts of a row that say how it ran."""

    row: Mapping[str, Any]
    profile: Profile

    @property
    def training(self) -> Mapping[str, Any]:
        return self.row["training"]  # type: ignore[no-any-return]

    @property
    def parallel(self) -> Mapping[str, Any]:
        return self.row["parallel"]  # type: ignore[no-any-return]

    @property
    def notes(self) -> str:
        return str(self.row.get("notes", ""))

    @property
    def config(self) -> Mapping[str, Any]:
        return self.row["model"]["config"]  # type: ignore[no-any-return]


def run_of(row: Mapping[str, Any], chosen: Profile | None = None) -> tuple[TrainingRecipe, Parallelism, Profile]:
    """Recipe, parallelism and profile of a row; :class:`Skip` where it does not say enough.

    ``chosen``: the profile, where the row's framework is not one that memory rows have.
    """
    r = _Row(row, chosen or profile(framework_of(row)))
    if "seq_len" not in r.training and "image_size" not in r.training:
        raise Skip("underspecified: no sequence length")
    recipe = _recipe(r)
    layout, mtp = _layout(r)
    changes: dict[str, object] = {"mtp_layers": mtp}
    if r.profile.name == "deepspeed":
        named = " ".join(str(v) for v in (*row.get("source", {}).values(), row["software"].get("version", "")))
        for part, settings in _SETTINGS:
            if part in named:
                changes |= settings
    return recipe.with_(**changes), _parallelism(r, layout), r.profile


def _formats(r: _Row) -> Mapping[str, str]:
    """Number formats that the row states, or that its model's only recipe has."""
    kinds: Mapping[str, str] = r.training.get("dtypes", {})
    if r.profile.name != "megatron-bridge" or "grad" in kinds or "optim" in kinds:
        return kinds
    # recipes differ: grad_reduce_in_fp32 and precision-aware optimizers (perf_recipes/*/common.py)
    found = next((formats for name, formats in _RECIPES if name in r.row["model"]["name"]), None)
    if found is None:
        raise Skip("underspecified: gradient and optimizer formats follow a recipe that the row does not state")
    return {**kinds, **found}


def _precision(kinds: Mapping[str, str], prof: Profile) -> str:
    """The profile's precision that these formats are nearest to."""
    compute = kinds.get("compute", "bf16")
    pure = kinds.get("param") == compute and "master" not in kinds and kinds.get("optim", "fp32") != "fp32"
    if pure and f"{compute}-true" in prof.formats:
        return f"{compute}-true"
    return compute if compute in prof.formats else "bf16"


def _adapter(peft: Mapping[str, Any] | None, kinds: Mapping[str, str]) -> Adapter | None:
    """The adapter that a row trains."""
    if not peft:
        return None
    kind = peft["kind"]
    if kind not in (*_RANKED, *_RANKLESS):
        raise Skip(f"not-modelled: adapter kind {kind!r}")
    if kind in _RANKLESS:
        peft = {"rank": 0, "targets": (), **peft}
    if "rank" not in peft or "targets" not in peft:
        raise Skip("underspecified: adapter rank or targets")
    return Adapter(
        kind="lora" if kind == "qlora" else kind,
        rank=peft["rank"],
        targets=tuple(peft["targets"]),
        dtype=peft.get("dtype") or kinds.get("optim") or "fp32",
        dropout=peft.get("dropout"),
    )


def _recompute(r: _Row) -> Recompute:
    """How the row checkpoints activations."""
    given = r.training.get("recompute", {"mode": "none"})
    every, layers = given.get("layers"), r.config.get("num_hidden_layers")
    if given["mode"] == "selective" and given.get("scope") == "layer" and every and layers:
        every = max(1, round(layers / every))  # the row counts recomputed layers, the recipe every n-th
    return Recompute(given["mode"], given.get("scope"), every, tuple(given.get("modules", ())))


def _attention(r: _Row) -> str | None:
    """The kernel; fitcheck's measure.py pins SDPA to the memory-efficient one and repeats keys and values for it."""
    given: str | None = r.training.get("attention")
    pinned = given == "sdpa" and str(r.row["software"].get("name", "")).startswith("fitcheck")
    return "mem-efficient" if pinned else given


def _recipe(r: _Row) -> TrainingRecipe:
    """All that the row says about the recipe."""
    t, kinds = r.training, _formats(r)
    quant = t.get("quantization")
    guessed = {entry.get("field") for entry in r.row.get("assumed", ())}
    quantization = None
    adapter = _adapter(t.get("peft"), kinds)
    if quant:
        rest = quant.get("rest", kinds.get("compute", "bf16"))
        quantization = Quantization(quant["kind"], bool(quant.get("double", False)), rest)
    return TrainingRecipe(
        micro_batch=t["micro_batch"],
        seq_len=t.get("decoder_seq_len") or t.get("seq_len", 1),
        encoder_seq_len=t.get("seq_len") if "decoder_seq_len" in t else None,
        grad_accum=_accumulation(r),
        framework=r.profile.name,
        precision=_precision(kinds, r.profile),
        optimizer=t.get("optimizer", "adamw"),
        optimizer_impl=t.get("optimizer_impl"),
        recompute=_recompute(r),
        attention=_attention(r),
        loss=t.get("loss"),
        compile=bool(t.get("compile", False)),
        dropout=t.get("dropout"),
        adapter=adapter,
        quantization=quantization,
        offload=frozenset(k for k, v in (t.get("offload") or {}).items() if v),
        optimizer_in_backward=bool(t.get("optimizer_in_backward", False)),
        param_dtype=None if quant else kinds.get("param"),
        grad_dtype=None if "training.dtypes.grad" in guessed else kinds.get("grad"),
        master_dtype=kinds.get("master"),
        optim_dtype=kinds.get("optim"),
        compute_dtype=kinds.get("compute"),
        fp8_recipe=kinds.get("fp8_recipe"),
        date=r.row["software"].get("date", ""),
        lengths="longest-first" if "longest training example forced" in r.notes else "equal",
        expandable_segments=False if str(r.row["hardware"].get("gpu", "")).startswith("mi") else None,
        grad_accum_fusion=False if "--no-gradient-accumulation-fusion" in r.notes else None,
    )


def _accumulation(r: _Row) -> int:
    """Micro-batches a step: as given, or from the global batch; one where each backward pass updates."""
    if r.training.get("optimizer_in_backward") or optimizer(r.training.get("optimizer", "adamw")).in_backward:
        return 1  # whatever the command accumulates (GaLore's torchrun_main.py steps in a hook of every gradient)
    if r.training.get("grad_accum"):
        return int(r.training["grad_accum"])
    batch = int(r.training.get("global_batch") or 0)
    return max(1, batch // (int(r.training["micro_batch"]) * int(r.parallel["dp"])))


def _layout(r: _Row) -> tuple[tuple[int, ...] | None, int]:
    """Layers of each pipeline chunk, if the row lists them, and the number of multi-token-prediction layers."""
    p, pattern = r.parallel, r.config.get("hybrid_layer_pattern", "")
    given = p.get("pp_layout") if p.get("pp", 1) > 1 and "M" not in p.get("pp_layout", "") else None
    layout, mtp = parse_layout(given) if given else (None, 0)
    if "|" in pattern:  # a hybrid pattern that marks the pipeline chunks
        layout = tuple(len(part) for part in pattern.split("|"))
    return layout, mtp or int("--mtp-num-layers=" in r.notes)


def _parallelism(r: _Row, layout: tuple[int, ...] | None) -> Parallelism:
    """All that the row says about parallelism."""
    p = r.parallel
    return Parallelism(
        dp=p["dp"],
        tp=p.get("tp", 1),
        pp=p.get("pp", 1),
        cp=p.get("cp", 1),
        ep=p.get("ep", 1),
        etp=p.get("etp"),
        vpp=p.get("vpp") or 1,
        sp=p.get("sp", False if r.profile.megatron else None),
        zero=p.get("zero", r.profile.default_zero),
        sharding=p.get("sharding"),
        hsdp_replicas=p.get("hsdp_replicas", 1),
        schedule=p.get("schedule"),
        layout=layout,
        reshard=p.get("reshard", "default"),
    )

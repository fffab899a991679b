"""A memory row of the evidence files -> the run that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.readers import read_config
from foretell.errors import ForetellError
from foretell.recipe.parallelism import Parallelism, parse_layout
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import Run, resolve
from foretell.recipe.training import Adapter, Quantization, Recompute, TrainingRecipe


class Skip(Exception):  # noqa: N818  (not an error: a row that is left out, with its reason)
    """A row that cannot be scored: ``not-modelled: ...`` or ``underspecified: ...``."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One row, ready to predict."""

    arch: Architecture
    run: Run
    stage: int | None
    """Pipeline rank that was measured; None: the highest."""


_FRAMEWORKS = {
    "megatron-core": "megatron-core", "megatron-bridge": "megatron-bridge", "nemo": "megatron-bridge",
    "megatron-lm": "megatron-core", "torchtitan": "torchtitan", "torchtune": "torchtune", "litgpt": "litgpt",
    "hf-trainer": "hf-trainer", "deepspeed": "deepspeed", "fsdp1": "fsdp1", "fsdp2": "fsdp2", "torchao": "torchao",
    "nanotron": "nanotron", "megatron-deepspeed": "megatron-deepspeed",
}  # fmt: skip
_RECIPES: tuple[tuple[str, dict[str, str]], ...] = (
    ("Moonlight-16B", {"grad": "bf16", "master": "fp32", "optim": "bf16"}),  # moonlight/h100/moonlight_16b.py
)
"""Formats of a model's only pretraining recipe in Megatron-Bridge (src/megatron/bridge/recipes), by the model's name."""
_PIPELINES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "FLUX.2-klein-base-4B",  # black-forest-labs/FLUX.2-klein-base-4B transformer/config.json
        {
            "_class_name": "Flux2Transformer2DModel", "num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24,
            "attention_head_dim": 128, "joint_attention_dim": 7680, "guidance_embeds": False,
        },
    ),
)  # fmt: skip
"""Transformers of pipelines that rows only name."""
_SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bf16_master_weight", {"reduce_bucket": 50_000_000}),  # deepspeedai/DeepSpeedExamples .../configs/baseline.json
    ("LOMO", {"live_parameters": 100_000_000, "sub_group": 100_000_000}),  # OpenLMLab/LOMO config/ds_config.json
)
"""Settings in a source's published configuration that a row has no field for, by a part of the source's name."""
_NAME_ONLY = {"detectron2", "diffusers"}


def framework_of(row: Mapping[str, Any]) -> str:
    """The profile that a row's software names."""
    software = row["software"]
    name = software["framework"]
    if "fsdp_qlora" in str(software.get("version", "")):
        return "fsdp-qlora"
    if name == "other":
        text = f"{software.get('name', '')} {software.get('version', '')}".lower()
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


def read_row(row: Mapping[str, Any]) -> MemoryRow:
    """Translate one row; :class:`Skip` with the reason when it cannot be."""
    config = row["model"]["config"]
    if config.get("model_type") == "diffusers" or "_class_name" in config:
        config = _diffusers(row["model"])
        if "image_size" in row["training"]:
            config = {**config, "image_size": row["training"]["image_size"]}
    if config.get("model_type") in _NAME_ONLY:
        raise Skip(f"underspecified: config names a {config['model_type']} model but not its shapes")
    if config.get("model_type") == "mmseg":  # such configurations name no size
        config = {**config, "image_size": row["training"]["image_size"]}
    try:
        arch = read_config(config, where=row["id"])
        run = resolve(*_run(row))
    except ForetellError as error:
        raise Skip(f"not-modelled: {error}") from error
    scope = row["measured"].get("scope", "rank0")
    pp = run.par.pp
    stage = {"max-rank": None, "rank0": 0, "last-stage": pp - 1}.get(scope)
    if scope.startswith("stage:"):
        stage = int(scope.split(":")[1])
    return MemoryRow(arch, run, stage)


def _diffusers(model: Mapping[str, Any]) -> dict[str, Any]:
    """The transformer of a diffusers pipeline: the row's own configuration, or the published one of that name."""
    config = {key: value for key, value in model["config"].items() if key != "model_type" or value != "diffusers"}
    if "_class_name" in config:
        return config
    named = f"{model.get('name', '')} {config.get('name', '')}"
    return next((published for name, published in _PIPELINES if name in named), dict(model["config"]))


def _run(row: Mapping[str, Any]) -> tuple[TrainingRecipe, Parallelism, Any]:
    t, p, software = row["training"], row["parallel"], row["software"]
    prof = profile(framework_of(row))
    kinds = t.get("dtypes", {})
    peft, quant = t.get("peft"), t.get("quantization")
    if "seq_len" not in t and "image_size" not in t:
        raise Skip("underspecified: no sequence length")
    if prof.name == "megatron-bridge" and "grad" not in kinds and "optim" not in kinds:
        # recipes differ: grad_reduce_in_fp32 and precision-aware optimizers (perf_recipes/*/common.py)
        kinds = kinds | next((formats for name, formats in _RECIPES if name in row["model"]["name"]), {})
    if prof.name == "megatron-bridge" and "grad" not in kinds and "optim" not in kinds:
        raise Skip("underspecified: gradient and optimizer formats follow a recipe that the row does not state")
    compute = kinds.get("compute", "bf16")
    precision = "bf16"
    if compute in prof.formats:
        precision = compute
    if kinds.get("param") == compute and "master" not in kinds and f"{compute}-true" in prof.formats:
        precision = precision if kinds.get("optim", "fp32") == "fp32" else f"{compute}-true"
    adapter = None
    if peft:
        if peft["kind"] not in ("lora", "qlora", "dora", "adapter", "adapter-v2", "ia3", "ln-tuning"):
            raise Skip(f"not-modelled: adapter kind {peft['kind']!r}")
        if peft["kind"] in ("adapter", "adapter-v2", "ia3", "ln-tuning"):
            peft = {"rank": 0, "targets": (), **peft}
        if "rank" not in peft or "targets" not in peft:
            raise Skip("underspecified: adapter rank or targets")
        adapter = Adapter(
            kind="lora" if peft["kind"] == "qlora" else peft["kind"], rank=peft["rank"], targets=tuple(peft["targets"]),
            dtype=peft.get("dtype") or kinds.get("optim") or "fp32", dropout=peft.get("dropout"),
        )  # fmt: skip
    guessed = {entry.get("field") for entry in row.get("assumed", ())}
    quantization = None
    if quant:
        quantization = Quantization(quant["kind"], bool(quant.get("double", False)), quant.get("rest", compute))
    r = dict(t.get("recompute", {"mode": "none"}))
    layers = row["model"]["config"].get("num_hidden_layers")
    if r["mode"] == "selective" and r.get("scope") == "layer" and r.get("layers") and layers:
        r["layers"] = max(1, round(layers / r["layers"]))  # the row counts recomputed layers, the recipe every n-th
    recipe = TrainingRecipe(
        micro_batch=t["micro_batch"], seq_len=t.get("decoder_seq_len") or t.get("seq_len", 1),
        encoder_seq_len=t.get("seq_len") if "decoder_seq_len" in t else None,
        grad_accum=t.get("grad_accum") or _accum(t, p), framework=prof.name, precision=precision,
        optimizer=t.get("optimizer", "adamw"), optimizer_impl=t.get("optimizer_impl"),
        recompute=Recompute(r["mode"], r.get("scope"), r.get("layers"), tuple(r.get("modules", ()))),
        attention=t.get("attention"), loss=t.get("loss"), compile=bool(t.get("compile", False)), dropout=t.get("dropout"),
        adapter=adapter, quantization=quantization, offload=frozenset(k for k, v in (t.get("offload") or {}).items() if v),
        optimizer_in_backward=bool(t.get("optimizer_in_backward", False)),
        param_dtype=None if quant else kinds.get("param"), grad_dtype=None if "training.dtypes.grad" in guessed else kinds.get("grad"), master_dtype=kinds.get("master"),
        optim_dtype=kinds.get("optim"), compute_dtype=kinds.get("compute"), fp8_recipe=kinds.get("fp8_recipe"),
        date=software.get("date", ""),
        lengths="longest-first" if "longest training example forced" in row.get("notes", "") else "equal",
        expandable_segments=False if str(row["hardware"].get("gpu", "")).startswith("mi") else None,
        grad_accum_fusion=False if "--no-gradient-accumulation-fusion" in row.get("notes", "") else None,
    )  # fmt: skip
    pattern = row["model"]["config"].get("hybrid_layer_pattern", "")
    given = p.get("pp_layout") if p.get("pp", 1) > 1 and "M" not in p.get("pp_layout", "") else None
    layout, mtp = parse_layout(given) if given else (None, 0)
    if "|" in pattern:  # a hybrid pattern that marks the pipeline chunks
        layout = tuple(len(part) for part in pattern.split("|"))
    if not mtp and "--mtp-num-layers=" in row.get("notes", ""):
        mtp = 1
    recipe = recipe.with_(mtp_layers=mtp)
    named = " ".join(str(v) for v in (*row.get("source", {}).values(), software.get("version", "")))
    for part, settings in _SETTINGS:
        if prof.name == "deepspeed" and part in named:
            recipe = recipe.with_(**settings)
    par = Parallelism(
        dp=p["dp"], tp=p.get("tp", 1), pp=p.get("pp", 1), cp=p.get("cp", 1), ep=p.get("ep", 1), etp=p.get("etp"),
        vpp=p.get("vpp") or 1, sp=p.get("sp", False if prof.megatron else None), zero=p.get("zero", prof.default_zero), sharding=p.get("sharding"),
        hsdp_replicas=p.get("hsdp_replicas", 1), schedule=p.get("schedule"), layout=layout,
        reshard=p.get("reshard", "default"),
    )  # fmt: skip
    return recipe, par, prof


def _accum(t: Mapping[str, Any], p: Mapping[str, Any]) -> int:
    if t.get("global_batch"):
        return max(1, int(t["global_batch"]) // (t["micro_batch"] * p["dp"]))
    return 1

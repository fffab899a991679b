"""Rows of every kind of source that the schema describes: each is read and gets a plausible step, or says precisely why not."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.evidence.training_replay import score
from foretell.evidence.training_rows import training_row


def llama(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int = 128256) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 128,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
    }


def gpt(hidden: int, layers: int, heads: int, vocab: int = 51200) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": 4 * hidden,
        "n_positions": 2048,
        "vocab_size": vocab,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    }


L8, L70, L405 = llama(4096, 32, 32, 8, 14336), llama(8192, 80, 64, 8, 28672), llama(16384, 126, 128, 8, 53248)
G22, G175, G530, G1000 = gpt(6144, 48, 64), gpt(12288, 96, 96), gpt(20480, 105, 128), gpt(25600, 128, 160)
DSV3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
    "n_group": 8,
    "topk_group": 4,
}
KIMI = DSV3 | {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
    "num_nextn_predict_layers": 0,
    "n_group": 1,
    "topk_group": 1,
}
Q30: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
Q235 = Q30 | {
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
}
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
NEMOTRON = llama(18432, 96, 96, 8, 73728, 256000) | {"model_type": "nemotron", "head_dim": 192}
BLOOM = {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880}
MPT = {
    "model_type": "mpt",
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "expansion_ratio": 4,
    "max_seq_len": 2048,
    "vocab_size": 50368,
    "learned_pos_emb": True,
    "no_bias": True,
}
FP16, FP32 = {"param": "fp16", "compute": "fp16"}, {"param": "fp32", "compute": "bf16"}
FP8, MXFP8, NVFP4 = ({"param": "bf16", "compute": kind} for kind in ("fp8", "mxfp8", "nvfp4"))
FULL = {"mode": "full"}
LORA = {"kind": "lora", "rank": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
DROPLESS = {"dropless": True, "routing": "force-balanced", "dispatcher": "flex"}
PARTIAL = {"impl": "transformer-engine", "scope": ["attn", "moe_router", "moe_preprocess"]}
SELENE = {"intra": "nvlink3", "inter": "ib-hdr200", "nics_per_node": 8, "nic_gbps": 200}


def run(
    config: dict[str, Any],
    machine: str,
    software: str,
    batch: tuple[int, int, int],
    *,
    dtypes: dict[str, str] | None = None,
    fabric: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    measured: dict[str, Any] | None = None,
    **parallel: Any,
) -> dict[str, Any]:
    """``machine``: 8 x h100-sxm-80gb / 8; ``software``: framework (or other: name) @ date; micro-batch, global batch, tokens."""
    count, gpu, per_node = machine.replace(" / ", " x ").split(" x ")
    name, date = software.split(" @ ")
    model = {key: parallel.get(key, 1) for key in ("tp", "pp", "cp")}
    degrees = {"tp": 1, "pp": 1, "dp": int(count) // (model["tp"] * model["pp"] * model["cp"])} | parallel
    return {
        "id": "x",
        "source": {"title": "somebody", "ref": "somewhere", "date": date},
        "model": {"name": "m", "config": config},
        "hardware": {"gpu": gpu, "gpus": int(count), "gpus_per_node": int(per_node)} | ({"fabric": fabric} if fabric else {}),
        "software": ({"framework": "other", "name": name[7:]} if name.startswith("other: ") else {"framework": name})
        | {"date": date},
        "training": {
            "micro_batch": batch[0],
            "global_batch": batch[1],
            "seq_len": batch[2],
            "dtypes": dtypes or {"param": "bf16", "compute": "bf16"},
            **(training or {}),
        },
        "parallel": degrees,
        "measured": {"step_s": 1.0} | (measured or {}),
        "confidence": 2,
        "split": "calib",
    }


INTERLEAVED: dict[str, Any] = {"schedule": "interleaved-1f1b"}
SHAPES: dict[str, dict[str, Any]] = {
    "in-house trainer, 4D": run(
        L405, "16384 x h100-sxm-80gb / 8", "other: Llama 3 (Meta) @ 2024-07", (1, 2048, 8192), tp=8, pp=16
    ),
    "in-house trainer, long": run(
        L405, "16384 x h100-sxm-80gb / 8", "other: Llama 3 (Meta) @ 2024-07", (1, 128, 131072), tp=8, pp=16, cp=16, dp=8
    ),
    "megatron-core": run(G175, "1536 x h100-sxm-80gb / 8", "megatron-core @ 2024-07", (1, 1536, 4096), tp=8, pp=8, vpp=6),
    "megatron-lm of 2021": run(
        G1000, "3072 x a100-sxm-80gb / 8", "megatron-lm @ 2021-04", (1, 3072, 2048), dtypes=FP16, fabric=SELENE, tp=8, pp=64
    ),
    "zero-3 of 2021": run(
        G175,
        "384 x a100-sxm-80gb / 8",
        "deepspeed @ 2021-04",
        (4, 1536, 2048),
        dtypes=FP16,
        fabric=SELENE,
        training={"recompute": FULL},
        zero=3,
        sharding="deepspeed",
    ),
    "megascale": run(G175, "12288 x a100-sxm-80gb / 8", "megascale @ 2024-02", (1, 6144, 2048), tp=8, pp=8, vpp=6, **INTERLEAVED),
    "megatron-deepspeed": run(
        G530, "2240 x a100-sxm-80gb / 8", "megatron-deepspeed @ 2022-01", (1, 1920, 2048), fabric=SELENE, tp=8, pp=35
    ),
    "bloom": run(
        BLOOM,
        "384 x a100-sxm-80gb / 8",
        "megatron-deepspeed @ 2022-03",
        (2, 2048, 2048),
        fabric={"intra": "nvlink3", "inter": "omnipath100", "nics_per_node": 4, "nic_gbps": 100},
        tp=4,
        pp=12,
        zero=1,
        sharding="deepspeed",
    ),
    "hai-llm": run(DSV3, "2048 x h800-sxm / 8", "other: HAI-LLM @ 2024-12", (1, 15360, 4096), dtypes=FP8, pp=16, ep=64, zero=1),
    "selective": run(
        G1000,
        "512 x a100-sxm-80gb / 8",
        "megatron-lm @ 2022-05",
        (1, 512, 2048),
        dtypes=FP16,
        training={"recompute": {"mode": "selective", "scope": "modules", "modules": ["core_attn"]}},
        tp=8,
        pp=64,
        sp=True,
    ),
    "torchtitan, float8, compiled": run(
        L8,
        "8 x h100-hbm2e-96gb / 8",
        "torchtitan @ 2024-11",
        (2, 16, 8192),
        dtypes={"param": "fp32", "compute": "fp8", "fp8_recipe": "rowwise"},
        training={"compile": True, "recompute": {"mode": "selective", "scope": "op"}},
    ),
    "torchtitan, async tp": run(
        L70, "256 x h100-hbm2e-96gb / 8", "torchtitan @ 2024-11", (16, 512, 8192), dtypes=FP32, tp=8, tp_comm_overlap=True
    ),
    "torchtitan, dp counts cp": run(
        L8,
        "8 x h100-hbm2e-96gb / 8",
        "torchtitan @ 2024-11",
        (1, 1, 131072),
        dtypes=FP32,
        training={"recompute": FULL},
        cp=8,
        dp=8,
    ),
    "torchtitan, pipeline": run(
        L405, "512 x h100-hbm2e-96gb / 8", "torchtitan @ 2024-11", (1, 256, 8192), dtypes=FP32, tp=8, pp=8, vpp=2, **INTERLEAVED
    ),
    "fsdp1, compiled, hsdp": run(
        llama(4096, 32, 32, 32, 11008, 32000),
        "128 x a100-sxm-80gb / 8",
        "fsdp1 @ 2024-03",
        (2, 256, 4096),
        dtypes=FP32,
        training={"compile": True, "attention": "sdpa"},
        hsdp_replicas=16,
        zero=3,
        sharding="fsdp1",
    ),
    "automodel, experts": run(
        DSV3, "1024 x h100-sxm-80gb / 8", "nemo-automodel @ 2025-10", (1, 8192, 4096), training={"moe": DROPLESS}, pp=4, ep=64
    ),
    "mlperf, amd, adapters": run(
        L70,
        "8 x mi300x / 8",
        "other: Primus @ 2025-05",
        (1, 8, 8192),
        dtypes=FP8,
        training={"peft": LORA},
        fabric={"intra": "xgmi"},
    ),
    "mlperf, amd, fsdp": run(L70, "8 x mi355x / 8", "megatron-lm @ 2025-08", (3, 24, 8192), zero=3, sharding="fsdp2"),
    "mlperf, gaudi": run(G175, "256 x gaudi2 / 8", "megatron-deepspeed @ 2023-11", (1, 2048, 2048), dtypes=FP8, tp=8, pp=8),
    "mlperf, tpu": run(G175, "512 x tpu-v5p / 4", "other: PaxML @ 2024-05", (2, 1024, 2048), fabric={"inter": "tpu-ici"}),
    "maxtext on tpu": run(L70, "256 x tpu-v6e / 4", "maxtext @ 2025-03", (2, 512, 4096), fabric={"inter": "tpu-ici"}),
    "maxtext on gpu": run(L8, "8 x h100-sxm-80gb / 8", "maxtext @ 2025-03", (2, 16, 8192), dtypes=FP8),
    "bridge, nvfp4": run(
        L405,
        "256 x gb300 / 4",
        "megatron-bridge @ 2026-02",
        (1, 1536, 8192),
        dtypes=NVFP4,
        fabric={"intra": "nvlink5", "domain_gpus": 72},
        training={"recompute": {"mode": "none"}, "cuda_graph": {"impl": "local", "scope": ["full_iteration"]}},
        tp=4,
        pp=16,
        vpp=8,
        pp_layout="embedding and loss each count as a layer",
    ),
    "bridge, latent attention": run(
        KIMI,
        "256 x gb300 / 4",
        "megatron-bridge @ 2026-02",
        (1, 4096, 4096),
        dtypes=MXFP8,
        training={"moe": DROPLESS, "cuda_graph": PARTIAL},
        pp=4,
        vpp=4,
        ep=64,
    ),
    "bridge, many experts": run(
        Q235,
        "64 x b300-sxm / 8",
        "megatron-bridge @ 2026-02",
        (1, 1024, 4096),
        dtypes=MXFP8,
        training={"moe": DROPLESS},
        pp=8,
        ep=8,
    ),
    "nemo": run(NEMOTRON, "128 x h100-sxm-80gb / 8", "nemo @ 2025-07", (1, 32, 4096), dtypes=FP8, tp=8, pp=4, vpp=12),
    "nemo, adapters": run(
        L70, "8 x h100-sxm-80gb / 8", "nemo @ 2025-07", (1, 32, 4096), dtypes=FP8, training={"peft": LORA}, tp=2, pp=4, vpp=20
    ),
    "nemo, capacity": run(
        MIXTRAL,
        "64 x b200-sxm / 8",
        "nemo @ 2025-03",
        (2, 256, 4096),
        dtypes=FP8,
        training={"moe": {"dropless": False, "capacity_factor": 1.5, "dispatcher": "alltoall"}},
        ep=8,
    ),
    "llm-foundry": run(
        MPT, "512 x a100-sxm-40gb / 8", "llm-foundry @ 2023-10", (8, 4096, 2048), dtypes=FP32, zero=3, sharding="fsdp1"
    ),
    "gpt-neox": run(
        gpt(6144, 44, 64, 50432), "96 x a100-sxm-40gb / 8", "gpt-neox @ 2022-02", (4, 1536, 2048), dtypes=FP16, tp=2, pp=4, zero=1
    ),
    "metaseq": run(G175, "992 x a100-sxm-80gb / 8", "other: metaseq @ 2022-01", (8, 992, 2048), dtypes=FP16, tp=8, zero=3),
    "t5x": run(
        llama(18432, 118, 48, 1, 73728, 256000) | {"head_dim": 256},
        "6144 x tpu-v4 / 4",
        "other: T5X @ 2022-04",
        (1, 2048, 2048),
        dtypes=FP32,
        tp=12,
    ),
    "tensor group over nodes": run(G175, "64 x a100-sxm-80gb / 8", "megatron-core @ 2023-06", (1, 64, 2048), tp=16, pp=2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_read_and_its_step_is_plausible(name: str) -> None:
    found = score(SHAPES[name])
    assert found.skipped is None
    assert found.predicted is not None
    assert found.ideal_s is not None
    assert 0.08 < found.ideal_s / found.predicted < 0.75
    assert found.low is not None
    assert found.high is not None
    assert 0.5 < found.low / found.predicted < 1 < found.high / found.predicted < 3


def test_what_is_taken_is_said() -> None:
    notes = {name: " ".join(training_row(row).notes) for name, row in SHAPES.items()}
    assert "vpp not stated: 8" in notes["in-house trainer, 4D"]
    assert "DualPipe" in notes["hai-llm"]
    assert "sequence parallelism not stated: off" in notes["megatron-lm of 2021"]
    assert "sequence parallelism not stated: on" in notes["megatron-core"]
    assert "scores in memory" in notes["megatron-lm of 2021"]
    assert "recompute not stated: full" in notes["megatron-lm of 2021"]
    assert "recompute not stated: none" in notes["nemo"]
    assert "dp = 8 counts the 8 context-parallel ranks" in notes["torchtitan, dp counts cp"]
    assert "FSDP, the default of maxtext" in notes["maxtext on tpu"]
    assert "as its own FSDP" in notes["mlperf, amd, fsdp"]


def test_runs_are_as_their_rows_say() -> None:
    read = {name: training_row(row) for name, row in SHAPES.items()}
    assert read["torchtitan, dp counts cp"].parallelism.world == 8
    assert read["nemo, capacity"].imbalance == 1.5
    assert read["bridge, nvfp4"].recipe.cuda_graphs == "full"
    assert read["bridge, latent attention"].recipe.cuda_graphs == "partial"
    layout = read["bridge, nvfp4"].parallelism.layout
    assert layout is not None
    assert (sum(layout), layout[0], layout[-1], len(layout)) == (126, 0, 0, 128)
    assert read["megascale"].recipe.tp_comm_overlap is True
    assert not read["megatron-core"].stand_in
    assert read["automodel, experts"].stand_in
    assert score(SHAPES["automodel, experts"]).regime == "experts elsewhere"
    assert score(SHAPES["maxtext on tpu"]).regime == "elsewhere"


def test_work_grows_with_the_capacity_of_experts() -> None:
    row = SHAPES["nemo, capacity"]
    plain = row | {"training": {key: value for key, value in row["training"].items() if key != "moe"}}
    padded, dropless = score(row).predicted, score(plain).predicted
    assert padded is not None
    assert dropless is not None
    assert padded > 1.1 * dropless

"""Model type -> module of this package that reads it (so that only that module is imported)."""

from __future__ import annotations

_FAMILIES: dict[str, tuple[str, ...]] = {
    "deepseek_v4": (
        "deepseek_v4", "deepseek_ref",
    ),
    "deepseek": (
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa", "axk1", "youtu",
    ),
    "moe_gated": (
        "mimo_v2_flash", "step3p5", "minimax_m3_vl_text", "minimax_m3",
    ),
    "moe": (
        "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text", "olmoe", "flex_olmo", "phimoe", "granitemoe", "granitemoeshared", "gpt_oss", "minimax_m2", "glm4_moe", "dots1", "solar_open", "hunyuan_v1_moe", "ernie4_5_moe", "llama4_text", "dbrx",
    ),
    "generic": ("gpt-generic",),
    "gpt": (
        "gpt2", "gpt-sw3", "gpt_bigcode", "gpt_neo", "gptj", "codegen", "gpt_neox", "falcon", "RefinedWeb", "RefinedWebModel", "bloom", "mpt", "opt", "qwen", "baichuan", "chatglm",
    ),
    "llama": (
        "llama", "mistral", "ministral", "ministral3", "qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3", "qwen3_vl_text", "phi3", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "starcoder2", "nemotron", "granite", "smollm3", "stablelm", "persimmon", "glm", "glm4", "exaone4", "ernie4_5", "hunyuan_v1_dense", "seed_oss", "apertus", "arcee", "helium", "cwm", "phi", "internlm2",
    ),
    "clip": (
        "clip", "clip_vision_model", "clip_text_model", "siglip", "siglip_vision_model", "siglip_text_model",
    ),  # fmt: skip
    "vit": ("vit", "deit", "beit", "dinov2"),
    "qwen_vl": ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
    "kimi_vl": ("kimi_k25", "kimi_k3"),
    "step_vl": ("step3p7",),
    "llama4_vl": ("llama4",),
    "bert": ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert"),
    "deberta": ("deberta-v2",),
    "modernbert": ("modernbert",),
    "t5": ("t5", "mt5", "umt5"),
    "bart": ("bart", "mbart", "marian", "pegasus"),
    "whisper": ("whisper",),
    "wav2vec2": ("wav2vec2",),
    "llava": (
        "llava", "llava_next", "mistral3", "paligemma", "pixtral", "idefics3", "smolvlm", "idefics3_vision", "smolvlm_vision",
    ),  # fmt: skip
    "gemma_vl": ("gemma3", "gemma3n", "gemma4"),
    "mllama_vl": ("mllama",),
}
MODULES: dict[str, str] = {model_type: module for module, types in _FAMILIES.items() for model_type in types}

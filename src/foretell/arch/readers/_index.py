"""Model type -> module of this package that reads it (so that only that module is imported)."""

from __future__ import annotations

_FAMILIES: dict[str, str] = {
    "nas": "nemotron-nas deci",
    "llama": (
        "llama mistral ministral ministral3 qwen2 qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen3 "
        "qwen3_vl_text phi3 olmo olmo2 olmo3 cohere cohere2 starcoder2 nemotron granite smollm3 stablelm "
        "persimmon glm glm4 exaone4 ernie4_5 hunyuan_v1_dense seed_oss apertus arcee helium cwm phi internlm2 "
        "exaone internlm3 iquestcoder command"
    ),
    "recurrent": "rwkv recurrent_gemma lfm2 lfm2_moe xlnet",
    "gemma_3n": "gemma3n_text",
    "gemma": "gemma gemma2 vaultgemma gemma3_text gemma4_text gemma4_unified_text",
    "hybrid": "nemotron_h zamba2",
    "mamba": "mamba falcon_mamba mamba2 jamba bamba granitemoehybrid falcon_h1",
    "delta": "qwen3_next qwen3_5_text qwen3_5_moe_text olmo_hybrid kimi_linear minimax",
    "deepseek_v4": "deepseek_v4 deepseek_ref",
    "deepseek": "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm4_moe_lite glm_moe_dsa axk1 youtu",
    "moe_gated": "mimo_v2_flash step3p5 minimax_m3_vl_text minimax_m3",
    "moe": (
        "mixtral qwen2_moe qwen3_moe qwen3_vl_moe_text qwen3_omni_moe_text olmoe flex_olmo phimoe granitemoe "
        "granitemoeshared gpt_oss minimax_m2 glm4_moe dots1 solar_open hunyuan_v1_moe ernie4_5_moe "
        "llama4_text dbrx"
    ),
    "generic": "gpt-generic megatron-hybrid",
    "megatron_t5": "megatron-t5",
    "gpt": (
        "gpt2 gpt-sw3 gpt_bigcode gpt_neo gptj codegen gpt_neox falcon RefinedWeb RefinedWebModel bloom mpt "
        "opt qwen baichuan chatglm"
    ),
    "clip": "clip clip_vision_model clip_text_model siglip siglip_vision_model siglip_text_model",
    "vit": "vit deit beit dinov2",
    "qwen_vl": "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe",
    "kimi_vl": "kimi_k25 kimi_k3",
    "step_vl": "step3p7",
    "llama4_vl": "llama4",
    "bert": "bert roberta xlm-roberta camembert electra distilbert albert",
    "deberta": "deberta-v2",
    "modernbert": "modernbert",
    "t5": "t5 mt5 umt5",
    "bart": "bart mbart marian pegasus",
    "whisper": "whisper",
    "wav2vec2": "wav2vec2",
    "llava": "llava llava_next mistral3 paligemma pixtral idefics3 smolvlm idefics3_vision smolvlm_vision",
    "gemma_vl": "gemma3 gemma3n gemma4",
    "mllama_vl": "mllama mllama_text_model",
    "resnet": "resnet",
    "mmseg": "mmseg",
    "convnext": "convnext",
    "swin": "swin",
    "segformer": "segformer",
    "detr": "detr",
    "sam": "sam",
    "unet": "UNet2DConditionModel",
    "dit": "DiTTransformer2DModel Transformer2DModel",
    "vae": "AutoencoderKL",
    "mmdit": "FluxTransformer2DModel SD3Transformer2DModel",
    "flux2": "Flux2Transformer2DModel",
}
MODULES: dict[str, str] = {model_type: module for module, types in _FAMILIES.items() for model_type in types.split()}

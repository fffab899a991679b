"""Stored bits: methods of quantisation, what they leave out, and the bytes of a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.arch.readers import read_config
from foretell.errors import ConfigError

SIZES = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "vocab_size": 512,
    "num_key_value_heads": 2, "intermediate_size": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
LAYER = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512
"""Quantisable elements of a layer: q and o, k and v, gate, up and down."""
REST = 2 * (2 * 512 * 256 + 25 * 256)
"""Bytes of embeddings, head and norms in 16 bits."""


def quantized(config: dict[str, Any], **more: Any) -> Any:
    return read_config({**SIZES, "quantization_config": config}, **more)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 16 / 128 + 4 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 16 / 128 + 4 / 128),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
         4 + 8 / 64 + 32 / 16384),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}}}}, 4.5),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"a": {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, 4.5),
    ],
)  # fmt: skip
def test_true_bits_of_an_element(config: dict[str, Any], bits: float) -> None:
    arch = quantized(config)
    assert arch.quantized.bits == pytest.approx(bits, abs=0)
    assert arch.checkpoint_bytes == round(12 * LAYER * bits / 8 + REST)


def test_what_is_named_is_left_in_16_bits() -> None:
    attention = 2 * 256 * 256 + 2 * 256 * 128
    half = quantized({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]})
    assert half.checkpoint_bytes == round(12 * ((LAYER - attention) * 4.25 / 8 + attention * 2) + REST)
    first = quantized({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.1.*", "lm_head"]})
    assert first.checkpoint_bytes == round(11 * LAYER * 4.5 / 8 + LAYER * 2 + REST)
    star = quantized({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.1*"]})
    assert star.checkpoint_bytes == round(9 * LAYER * 4.5 / 8 + 3 * LAYER * 2 + REST), "layers 1, 10 and 11"
    pattern = quantized({"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"], "config_groups": {
        "a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}}}})  # fmt: skip
    assert pattern.checkpoint_bytes == 12 * ((LAYER - attention) + attention * 2) + REST


def test_mixed_precision_quantises_what_it_lists() -> None:
    layers = {f"model.layers.{i}.mlp.up_proj": {"quant_algo": "FP8"} for i in range(12)}
    beside = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    arch = read_config(SIZES, beside=beside)
    assert arch.checkpoint_bytes == 12 * (LAYER * 2 - 256 * 512) + REST


def test_the_file_beside_the_configuration() -> None:
    arch = read_config(SIZES, beside={"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
                                                       "exclude_modules": ["lm_head"]}})  # fmt: skip
    assert arch.quantized is not None
    assert (arch.quantized.bits, arch.quantized.skip) == (4.5, ("lm_head",))
    assert read_config(SIZES, beside={"quantization": {"quant_algo": None}}).quantized is None


def test_experts_of_a_fp8_checkpoint_may_be_four_bits() -> None:
    arch = read_config({"model_type": "deepseek_v4", "expert_dtype": "fp4", "torch_dtype": "bfloat16",
                        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})  # fmt: skip
    assert arch.quantized is not None
    assert arch.quantized.groups == (("*.experts", 4.25),)
    assert arch.checkpoint_bytes is not None
    assert 4.25 / 8 < arch.checkpoint_bytes / arch.parameters < 0.6


@pytest.mark.parametrize(("layers", "experts", "size"), [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)])
def test_gpt_oss_is_as_large_as_published(layers: int, experts: int, size: int) -> None:
    """``total_size`` of the checkpoints' indexes as their publisher gives it (from memory, not re-opened)."""
    config = {
        "model_type": "gpt_oss", "num_hidden_layers": layers, "num_local_experts": experts,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
    }  # fmt: skip
    assert read_config(config).checkpoint_bytes == pytest.approx(size, rel=1e-6)


def test_bytes_without_quantisation() -> None:
    assert read_config(SIZES).checkpoint_bytes == read_config(SIZES).parameters * 2
    assert read_config({**SIZES, "torch_dtype": "float32"}).checkpoint_bytes == read_config(SIZES).parameters * 4
    assert read_config({k: v for k, v in SIZES.items() if k != "torch_dtype"}).checkpoint_bytes is None


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"quant_method": "squeeze"}, "compressed-tensors"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "NVFP4"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "weight_block_size"),
        ({"quant_method": "awq", "bits": "four"}, "bits"),
        ({"quant_method": "compressed-tensors", "config_groups": []}, "config_groups"),
        ("fp8", "quantization_config"),
    ],
)
def test_a_bad_quantisation_names_the_key(config: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        quantized(config)

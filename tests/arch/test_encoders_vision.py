"""Encoders, vision, multimodal and diffusion readers.

``encoder_cases.json`` holds, for each model class, configurations (the class's default and small ones that change
what the default leaves alone) and the number of parameters of the module.  The numbers are pinned, so the first
tests need neither library; the oracle tests build each module on the meta device and count again.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from foretell.arch.architecture import Architecture
from foretell.arch.operators import (
    Act,
    Add,
    Attention,
    Conv,
    Dropout,
    Embedding,
    Head,
    Linear,
    Parameters,
    Pool,
)
from foretell.arch.readers import read_config
from foretell.errors import ConfigError

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("encoder_cases.json").read_text())
DIFFUSERS = [name for name, entry in CASES.items() if entry["model_type"] is None]
TRANSFORMERS = [name for name, entry in CASES.items() if entry["model_type"] is not None]


def raw_config(name: str, config: dict[str, Any]) -> dict[str, Any]:
    model_type = CASES[name]["model_type"]
    return (
        {"_class_name": name, **config} if model_type is None else {"model_type": model_type, "architectures": [name], **config}
    )


def count(module: Any) -> int:
    return sum({id(p): p.numel() for p in module.parameters()}.values())


# -- pinned counts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_those_of_the_module(name: str) -> None:
    for config, parameters in CASES[name]["cases"]:
        assert read_config(raw_config(name, config)).parameters == parameters, config


@pytest.mark.parametrize(
    ("raw", "parameters"),
    [
        ({"model_type": "bert"}, 109_514_298),  # BertForMaskedLM
        ({"model_type": "t5"}, 60_506_624),  # T5ForConditionalGeneration
        ({"model_type": "vit"}, 85_800_194),  # ViTForImageClassification
        ({"model_type": "clip"}, 151_277_313),  # CLIPModel
        ({"model_type": "wav2vec2"}, 94_396_320),  # Wav2Vec2ForCTC
        ({"model_type": "segformer"}, 3_714_658),  # SegformerForSemanticSegmentation
        ({"model_type": "detr"}, 41_501_895),  # DetrForObjectDetection over ResNet-50
    ],
)
def test_class_without_architectures(raw: dict[str, Any], parameters: int) -> None:
    assert read_config(raw).parameters == parameters


def test_unknown_class_falls_back_with_a_note() -> None:
    arch = read_config({"model_type": "bert", "architectures": ["BertForSomething"]})
    assert arch.parameters == 109_514_298
    assert "BertForSomething" in arch.notes[0]


def test_flat_qwen2_vl_file() -> None:
    """Files of before version 5 carry the text part's keys at the top level."""
    text = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"intermediate_size": 96, "vocab_size": 101}
    vision = {"model_type": "qwen2_vl", "depth": 2, "embed_dim": 48, "hidden_size": 64, "num_heads": 4}
    flat = read_config({"model_type": "qwen2_vl", "vision_config": vision, "tie_word_embeddings": True, **text})
    nested = read_config({"model_type": "qwen2_vl", "vision_config": vision, "tie_word_embeddings": True, "text_config": text})
    assert flat.parameters == nested.parameters
    assert flat.tied


def test_kimi_k3_tower_is_that_of_its_model_card() -> None:
    """401.2 M parameters of MoonViT-V2 (model card of moonshotai/Kimi-K3)."""
    vision = {
        "vt_hidden_size": 1024, "vt_intermediate_size": 4096, "vt_num_attention_heads": 12, "vt_num_hidden_layers": 27,
        "qkv_hidden_size": 1536, "patch_size": 14, "merge_kernel_size": [2, 2], "mm_hidden_size": 1024,
    }  # fmt: skip
    text = {"model_type": "kimi_linear", "hidden_size": 64, "num_hidden_layers": 2}
    arch = read_config({"model_type": "kimi_k3", "vision_config": vision, "text_config": text})
    stacks = {stack.name: stack for stack in arch.stacks}
    final_norm = 1024
    assert stacks["vision_embed"].parameters + stacks["vision"].parameters + final_norm == 401_214_464


# -- structure --------------------------------------------------------------------------------------------------


def problems(arch: Architecture) -> list[str]:
    """Inputs that no earlier operator made, and widths that do not meet."""
    found: list[str] = []
    for block, _ in arch.blocks():
        widths = {"x": block.width, "memory": 0, "skip": 0}
        last = "x"
        for op in block.ops:
            source = isinstance(op, Parameters | Embedding)
            ins = op.ins or (() if source else (last,))
            found += [f"{block.name}.{op.name}: no tensor {i}" for i in ins if i not in widths]
            needs = {Linear: "d_in", Conv: "c_in", Head: "dim", Act: "features", Dropout: "features", Add: "features"}
            key = needs.get(type(op))
            if key:
                want = getattr(op, key)
                found += [
                    f"{block.name}.{op.name}: {i} is {widths[i]} wide, not {want}"
                    for i in ins
                    if widths.get(i, 0) not in (0, want)
                ]
            if isinstance(op, Attention) and len(ins) != 3:
                found.append(f"{block.name}.{op.name}: three inputs needed")
            if op.name in widths:
                found.append(f"{block.name}: two operators named {op.name}")
            widths[op.name] = op.width
            last = last if isinstance(op, Parameters) else op.name
    return found


@pytest.mark.parametrize("name", CASES)
def test_operators_are_connected(name: str) -> None:
    config = CASES[name]["cases"][-1][0]
    arch = read_config(raw_config(name, config))
    towers = {block.name for stack in arch.stacks for block in stack.blocks}
    assert towers
    if arch.text is None:  # the text part of a multimodal model is another reader's
        assert problems(arch) == []


@pytest.mark.parametrize("name", [name for name in TRANSFORMERS if "ForConditionalGeneration" in name])
def test_towers_run_before_the_text_part(name: str) -> None:
    arch = read_config(raw_config(name, CASES[name]["cases"][-1][0]))
    if arch.family != "multimodal" or arch.text is None:
        return
    assert arch.stacks[-len(arch.text.stacks) :] == arch.text.stacks
    for stack in arch.stacks[: -len(arch.text.stacks)]:
        for block in stack.blocks:
            assert block.stream == "sample"
            assert block.positions > 0


def test_encoder_decoder_streams() -> None:
    arch = read_config(
        {"model_type": "t5", "d_model": 32, "num_heads": 2, "d_kv": 8, "d_ff": 48, "num_layers": 2, "vocab_size": 50}
    )
    assert [(stack.name, stack.blocks[0].stream) for stack in arch.stacks] == [
        ("encoder_embed", "encoder"), ("encoder", "encoder"), ("encoder_norm", "encoder"), ("decoder", "text"),
    ]  # fmt: skip
    cross = [op for op in arch.main.blocks[0].ops if isinstance(op, Attention) and op.memory == "cross"]
    assert len(cross) == 1
    assert read_config({"model_type": "whisper"}).stacks[0].blocks[0].positions == 1500


def test_albert_counts_its_shared_layer_once() -> None:
    arch = read_config({"model_type": "albert"})
    assert arch.layers == 12
    assert arch.main.counts() == (1, 11)
    assert arch.main.blocks[1].parameters == 0
    assert arch.main.blocks[1].ops == arch.main.blocks[0].ops


def test_images_shrink_through_the_stages() -> None:
    arch = read_config({"model_type": "swin"})
    rows = [stack.blocks[0].positions for stack in arch.stacks if stack.name.startswith("stage")]
    assert rows == [56 * 56, 28 * 28, 14 * 14, 7 * 7]
    last = read_config({"model_type": "resnet"}).stacks[-1].blocks[-1]
    assert [op.positions for op in last.ops if isinstance(op, Conv | Pool)][-1] == 7 * 7


# -- bad files --------------------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "bert", "hidden_size": "large"}, "hidden_size"),
    ({"model_type": "bert", "num_attention_heads": 7}, "num_attention_heads"),
    ({"model_type": "bert", "num_hidden_layers": 2**39}, "num_hidden_layers"),
    ({"model_type": "bert", "add_cross_attention": True}, "add_cross_attention"),
    ({"model_type": "bert", "architectures": "BertModel"}, "architectures"),
    ({"model_type": "albert", "num_hidden_groups": 13}, "num_hidden_groups"),
    ({"model_type": "modernbert", "layer_types": ["full_attention"]}, "layer_types"),
    ({"model_type": "vit", "image_size": 8}, "image_size"),
    ({"model_type": "vit", "patch_size": 0}, "patch_size"),
    ({"model_type": "dinov2", "mlp_ratio": -1}, "mlp_ratio"),
    ({"model_type": "swin", "num_heads": [3]}, "num_heads"),
    ({"model_type": "resnet", "layer_type": "dense"}, "layer_type"),
    ({"model_type": "resnet", "depths": [1, 2]}, "depths"),
    ({"model_type": "segformer", "strides": [4, 2, 2, "2"]}, "strides[3]"),
    ({"model_type": "wav2vec2", "conv_stride": [5]}, "conv_dim"),
    ({"model_type": "wav2vec2", "add_adapter": True}, "add_adapter"),
    ({"model_type": "detr", "backbone": "efficientnet_b0"}, "backbone"),
    ({"model_type": "clip", "vision_config": "large"}, "vision_config"),
    ({"model_type": "llava", "vision_config": {"model_type": "intern_vit"}}, "vision_config.model_type"),
    ({"model_type": "llava", "text_config": {"model_type": "nothing"}}, "text_config.model_type"),
    ({"model_type": "gemma3n"}, "architectures"),
    ({"model_type": "kimi_k3", "vision_config": {"vt_hidden_size": 64}}, "vision_config.vt_num_hidden_layers"),
    ({"_class_name": "UNet2DConditionModel", "mid_block_type": "UNetMidBlock2D"}, "mid_block_type"),
    ({"_class_name": "UNet2DConditionModel", "down_block_types": ["AttnDownBlock2D"] * 4}, "down_block_types"),
    ({"_class_name": "AutoencoderKL", "up_block_types": ["AttnUpDecoderBlock2D"]}, "up_block_types"),
    ({"_class_name": "Transformer2DModel", "norm_type": "ada_norm_single"}, "norm_type"),
    ({"_class_name": "SD3Transformer2DModel", "caption_projection_dim": 7}, "caption_projection_dim"),
]


@pytest.mark.parametrize(("raw", "field"), BAD)
def test_bad_files_name_the_field(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(raw, where="there.json")
    assert error.value.to_dict()["field"] == field
    assert error.value.to_dict()["where"] == "there.json"


# -- oracle -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_builds_as_many(name: str) -> None:
    with quiet():
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers", minversion="5.24.0")
        cls = getattr(transformers, name)
        for config, parameters in CASES[name]["cases"]:
            with torch.device("meta"):
                module = cls(cls.config_class(**json.loads(json.dumps(config))))
            assert count(module) == parameters, config


@pytest.mark.parametrize("name", DIFFUSERS)
def test_diffusers_builds_as_many(name: str) -> None:
    with quiet():
        torch = pytest.importorskip("torch")
        diffusers = pytest.importorskip("diffusers")
        for config, parameters in CASES[name]["cases"]:
            with torch.device("meta"):
                module = getattr(diffusers, name)(**config)
            assert count(module) == parameters, config
            assert read_config(json.loads(module.to_json_string())).parameters == parameters


def test_a_unet_is_checkpointed_part_by_part() -> None:
    """diffusers ``unet_2d_blocks.py``: residual blocks but the middle's first, transformer blocks; the rest is kept."""
    arch = read_config({"_class_name": "UNet2DConditionModel", "transformer_layers_per_block": [1, 2, 1, 1]})
    parts = {}
    for stack in arch.stacks:
        for i, at in enumerate(stack.pattern):
            block = stack.blocks[at]
            assert block.checkpoints is not None
            names = [op.name for op in block.ops]
            inside = [name for part in block.checkpoints for name in part]
            assert len(set(inside)) == len(inside)
            assert [name for name in names if name in inside] == inside  # each a run of operators, in order
            assert not {"attn_norm", "proj_in", "proj_out", "attn_out", "concat", "down", "up", "resize"} & set(inside)
            parts[stack.name, i] = [part[0] for part in block.checkpoints]
    assert parts["down0", 0] == ["norm1", "t0_norm1"]
    assert parts["down0", 2] == []
    assert parts["down1", 0] == ["norm1", "t0_norm1", "t1_norm1"]
    assert (parts["mid", 0], parts["mid", 1]) == (["t0_norm1"], ["norm1"])
    assert parts["up0", 0] == ["norm1"]

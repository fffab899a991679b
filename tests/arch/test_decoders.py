"""Readers of decoder-only models: exact parameter counts, sound operator graphs, errors that name the key."""

from __future__ import annotations

import contextlib
import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Add, Attention, Head, Linear, Norm, Operator, Parameters, Rope, Router
from foretell.arch.readers import read_config
from foretell.errors import ConfigError

_CASES: dict[str, Any] = json.loads(Path(__file__).with_name("decoder_cases.json").read_text())
DEFAULTS: dict[str, int] = _CASES["defaults"]
"""Model type -> parameters of its class's default configuration, counted on the module of transformers 5.24.0."""
SMALL: list[tuple[str, dict[str, Any], int]] = [
    (model_type, {**group["base"], **change}, count)
    for model_type, groups in _CASES["small"].items()
    for group in groups
    for change, count in group["cases"]
]
"""Small configurations with one flag or size changed each, and their counts (the oracle tests repeat them)."""
ATTENTION_70B = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
FULL: list[tuple[str, dict[str, Any], int]] = [
    ("llama", {**ATTENTION_70B, "intermediate_size": 28672, "vocab_size": 128256}, 70_553_706_496),
    ("mixtral", {"hidden_size": 6144, "num_attention_heads": 48, "num_hidden_layers": 56, "num_key_value_heads": 8,
                 "intermediate_size": 16384, "vocab_size": 32768}, 140_630_071_296),
    ("qwen3", {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
               "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True},
     596_049_920),
    ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}, 20_914_757_184),
    ("qwen3_moe", {"hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
                   "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 1536, "vocab_size": 151936},
     235_093_634_560),
    ("glm_moe_dsa", {"num_attention_heads": 64, "index_topk_freq": 4, "index_skip_topk_offset": 3}, 743_377_000_704),
    ("falcon", {"hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8,
                "new_decoder_architecture": True, "vocab_size": 65024}, 41_303_293_952),
]  # fmt: skip
PUBLISHED: list[tuple[dict[str, Any], int]] = [
    ({"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "kv_channels": 128,
      "intermediate_size": 22016, "vocab_size": 151936, "no_bias": True}, 7_721_324_544),
    ({"model_type": "baichuan", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
      "intermediate_size": 11008, "vocab_size": 125696}, 7_505_973_248),
    ({"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128,
      "ffn_hidden_size": 13696, "padded_vocab_size": 65024, "multi_query_attention": True, "add_qkv_bias": True,
      "multi_query_group_num": 2, "add_bias_linear": False}, 6_243_584_000),
    ({"model_type": "internlm2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
      "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 92544, "bias": False}, 7_737_708_544),
]  # fmt: skip
"""Types that transformers lacks: totals as their publishers state them (from memory, pages not re-opened)."""


def ids(cases: list[tuple[str, dict[str, Any], int]]) -> list[str]:
    return [f"{model_type}-{i}" for i, (model_type, _, _) in enumerate(cases)]


@pytest.mark.parametrize("model_type", sorted(DEFAULTS))
def test_the_class_default_has_the_pinned_count(model_type: str) -> None:
    assert read_config({"model_type": model_type}).parameters == DEFAULTS[model_type]


@pytest.mark.parametrize(("model_type", "config", "count"), SMALL, ids=ids(SMALL))
def test_every_flag_is_honoured(model_type: str, config: dict[str, Any], count: int) -> None:
    assert read_config({"model_type": model_type, **config}).parameters == count


@pytest.mark.parametrize(("model_type", "config", "count"), FULL, ids=ids(FULL))
def test_full_sizes(model_type: str, config: dict[str, Any], count: int) -> None:
    assert read_config({"model_type": model_type, **config}).parameters == count


@pytest.mark.parametrize(("config", "count"), PUBLISHED, ids=[c["model_type"] for c, _ in PUBLISHED])
def test_types_that_transformers_lacks_have_their_published_size(config: dict[str, Any], count: int) -> None:
    assert read_config(config).parameters == count


def reads(op: Operator, known: dict[str, int | None], before: str) -> list[int | None]:
    """Widths of what an operator reads; a name that is not known fails."""
    names = op.ins or ((before,) if before else ())
    for name in names:
        assert name in known, f"{op.name} reads {name}, which nothing before it makes"
    return [known[name] for name in names]


def fits(have: int | None, want: int) -> bool:
    """Whether a tensor can serve: as it is, as a slice of a wider one, or broadcast."""
    return have is None or have >= want or want % have == 0


def check(block: Block) -> None:
    known: dict[str, int | None] = {"x": block.width, "memory": None}
    before = "x" if block.name != "embed" else ""
    for op in block.ops:
        if isinstance(op, Parameters):
            known[op.name] = None
            continue
        assert op.name not in known, f"two operators are called {op.name}"
        widths = reads(op, known, before)
        if isinstance(op, Linear | Head | Router):
            want = op.d_in if isinstance(op, Linear) else op.dim
            assert fits(widths[0] if widths else None, want), (op, widths)
        elif isinstance(op, Norm | Rope) and op.name != "k_rope":
            assert all(fits(w, op.width) for w in widths), (op, widths)
        elif isinstance(op, Attention):
            wanted = (op.heads * op.head_dim, op.kv_heads * op.head_dim, op.kv_heads * op.v_dim)
            assert len(widths) in (1, 3)
            assert all(fits(w, want) for w, want in zip(widths, wanted, strict=False)), (op, widths)
        elif isinstance(op, Add):
            assert all(fits(w, op.features) for w in widths), (op, widths)
        known[op.name], before = op.width, op.name


def every_block(arch: Architecture) -> list[Block]:
    return [block for block, _ in arch.blocks()]


@pytest.mark.parametrize(("model_type", "config", "count"), SMALL, ids=ids(SMALL))
def test_operators_read_what_exists_and_fits(model_type: str, config: dict[str, Any], count: int) -> None:
    arch = read_config({"model_type": model_type, **config})
    assert count > 0
    for block in every_block(arch):
        check(block)
    for block in arch.main.blocks:
        assert block.ops[-1].width == block.width, "a layer gives back what it was given"


def layer(model_type: str, which: int = 0, **config: Any) -> dict[str, Operator]:
    return {op.name: op for op in read_config({"model_type": model_type, **config}).main.blocks[which].ops}


def test_where_the_norms_stand() -> None:
    assert layer("llama")["q_proj"].ins == ("norm1",)
    assert layer("olmo2")["q_proj"].ins == ("x",)
    assert layer("gemma2")["add1_drop"].ins == ("post_norm1",)
    assert layer("gptj")["add2"].ins == ("x", "out_proj_drop", "fc_out_drop")
    neox = layer("gpt_neox")
    assert (neox["query_key_value"].ins, neox["dense_h_to_4h"].ins) == (("norm1",), ("norm2",))
    assert layer("opt", do_layer_norm_before=False)["norm1"].ins == ("add1",)


def test_layers_are_named_for_what_they_are() -> None:
    assert [b.name for b in read_config({"model_type": "jamba"}).main.blocks] == [
        "mamba-dense", "mamba-moe", "attention-dense",
    ]  # fmt: skip
    arch = read_config({"model_type": "gpt_oss"})
    assert [b.name for b in arch.main.blocks] == ["sliding", "attention"]
    assert arch.main.pattern[:4] == (0, 1, 0, 1)
    nemotron = {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E"}
    assert [b.name for b in read_config(nemotron).main.blocks] == ["mamba", "mlp", "attention", "moe"]


def test_layers_that_share_keys_have_none_of_their_own() -> None:
    arch = read_config({"model_type": "gemma3n_text"})
    last = {op.name: op for op in arch.main.blocks[arch.main.pattern[-1]].ops}
    assert "k_proj" not in last
    assert last["attn"].ins == ("q_rope",)


def test_next_token_layers_are_stored_but_not_built() -> None:
    built = read_config({"model_type": "deepseek_v3"})
    stored = read_config({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
    assert built.parameters == stored.parameters
    assert [b.name for b in stored.unused] == ["next-token"]


def test_an_unknown_type_is_read_by_its_class_name_or_its_keys() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
    named = read_config({**sizes, "intermediate_size": 96, "model_type": "mine", "architectures": ["Qwen2ForCausalLM"],
                         "num_key_value_heads": 2})  # fmt: skip
    assert "q_proj.bias" in [w.name for w in named.main.blocks[0].weights()]
    other = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 96, "vocab_size": 99, "model_type": "mine"}
    plain = read_config(other)
    assert plain.parameters == read_config({**sizes, "intermediate_size": 96, "model_type": "llama"}).parameters
    assert "unknown" in plain.notes[0]
    sparse = {**sizes, "model_type": "mine", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    assert read_config(sparse).experts == 4


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"model_type": "llama", "hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers"),
        ({"model_type": "llama", "num_key_value_heads": 7}, "num_key_value_heads"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M?"}, "hybrid_override_pattern"),
        ({"model_type": "deepseek_v4", "compress_ratios": [5]}, "compress_ratios"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 3]]}, "attention_types"),
        ({"model_type": "mamba2", "num_heads": 3}, "num_heads"),
        ({"model_type": "nemotron-nas", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 9, "block_configs": []}, "block_configs"),
        ({"model_type": "unheard-of", "hidden_size": 64}, "model_type"),
        ({"model_type": "unheard-of", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "vocab_size": 9, "intermediate_size": 9, "ssm_state_size": 4}, "model_type"),
    ],
)  # fmt: skip
def test_a_bad_configuration_names_the_key(config: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        read_config(config)


@pytest.mark.parametrize("value", [None, -1, 0, "x", [], {}, 1e30, True, [None], float("nan"), [[1]]])
@pytest.mark.parametrize("model_type", ["llama", "jamba", "deepseek_v4", "gemma4_text", "step3p5", "nemotron_h"])
def test_no_value_raises_anything_but_a_config_error(model_type: str, value: object) -> None:
    base = _CASES["small"][model_type][0]["base"]
    for key in base:
        with contextlib.suppress(ConfigError):
            assert read_config({"model_type": model_type, **base, key: value}).parameters >= 0


ALONE = {
    "step3p5": ("step3p7.modeling_step3p7", "Step3p7TextModel"),
    "mllama_text_model": ("mllama.modeling_mllama", "MllamaForCausalLM"),
}
"""Text models that no automatic class builds."""


def built(model_type: str, config: dict[str, Any]) -> tuple[int, bool]:
    """Parameters of the module that transformers builds, and whether it has an output head."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        made = CONFIG_MAPPING[model_type](**json.loads(json.dumps(config)))
        if model_type in ALONE:
            module = getattr(importlib.import_module(f"transformers.models.{ALONE[model_type][0]}"), ALONE[model_type][1])(made)
        elif type(made) in transformers.AutoModelForCausalLM._model_mapping:
            module = transformers.AutoModelForCausalLM.from_config(made)
        else:
            module = transformers.AutoModel.from_config(made)
    return sum(p.numel() for p in module.parameters()), hasattr(module, "lm_head") or "LM" in type(module).__name__


def counted(model_type: str, config: dict[str, Any], *, head: bool) -> int:
    arch = read_config({"model_type": model_type, **config})
    without = 0 if head else sum(w.elements for op in arch.head.ops if isinstance(op, Head) for w in op.weights())
    return arch.parameters - without


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model_type", "config", "count"), SMALL + FULL, ids=ids(SMALL + FULL))
def test_transformers_counts_the_same(model_type: str, config: dict[str, Any], count: int) -> None:
    expected, head = built(model_type, config)
    assert counted(model_type, config, head=head) == expected
    assert not head or expected == count


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", sorted(DEFAULTS))
def test_transformers_counts_the_same_by_default(model_type: str) -> None:
    expected, head = built(model_type, {})
    assert counted(model_type, {}, head=head) == expected

"""What PyTorch keeps for the backward pass, counted by hooks on the CPU, against what the fold says is kept.

Storages are counted once and parameters are left out.  Dropout is off: on the CPU its mask has the format of its
input, on a GPU it is one byte.  SDPA is a flash kernel on the CPU whatever the format, so the fold is told so.  Attention with
a trained bias (T5, Swin) has no fused kernel on the CPU and is left out there;
Mamba falls back to a scan written in Python, which the fold is told.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foretell.arch.readers import read_config
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.training_memory import fold_run, sizes_of
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.profiles import profile
from foretell.recipe.resolve import resolve
from foretell.recipe.training import TrainingRecipe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BATCH, SEQ, TARGETS, VOCAB = 2, 128, 64, 1024
_DECODER = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 704, "vocab_size": VOCAB,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ENCODER = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 1024,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_IMAGE = {"image_size": 112, "patch_size": 14}
_PAIR = {
    "d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
    "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "vocab_size": VOCAB, "dropout": 0.0, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
_GPT2 = {
    "n_embd": 256, "n_layer": 2, "n_head": 8, "n_positions": 512, "vocab_size": VOCAB, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_T5 = {
    "d_model": 256, "d_kv": 32, "num_layers": 2, "num_heads": 8, "d_ff": 704, "vocab_size": VOCAB, "dropout_rate": 0.0,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
_STAGES = {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]}
_SWIN = {
    "embed_dim": 32, "depths": [2, 2, 2, 2], "num_heads": [1, 2, 4, 8], "image_size": 224, "drop_path_rate": 0.0,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_CLIP_TEXT = {
    "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCAB,
    "max_position_embeddings": SEQ, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_CLIP_IMAGE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, **_IMAGE}

Case = tuple[str, dict[str, Any], str, str, tuple[str, ...], float]
CASES: list[Case] = [
    ("LlamaConfig", {**_DECODER, "num_key_value_heads": 2}, "LlamaForCausalLM", "lm", ("sdpa", "eager"), 0.01),
    ("Qwen3Config", {**_DECODER, "num_key_value_heads": 2, "head_dim": 32}, "Qwen3ForCausalLM", "lm", ("sdpa", "eager"), 0.01),
    ("Gemma2Config", {**_DECODER, "num_key_value_heads": 4, "head_dim": 32}, "Gemma2ForCausalLM", "lm", ("eager",), 0.01),
    (
        "MixtralConfig", {**_DECODER, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2},
        "MixtralForCausalLM", "lm", ("sdpa", "eager"), 0.01,
    ),
    ("GPT2Config", _GPT2, "GPT2LMHeadModel", "lm", ("sdpa", "eager"), 0.01),
    ("BertConfig", {**_ENCODER, "vocab_size": VOCAB}, "BertForMaskedLM", "lm", ("sdpa", "eager"), 0.01),
    (
        "BertConfig", {**_ENCODER, "vocab_size": VOCAB, "architectures": ["BertForSequenceClassification"]},
        "BertForSequenceClassification", "class", ("sdpa", "eager"), 0.01,
    ),
    ("ViTConfig", {**_ENCODER, **_IMAGE}, "ViTForImageClassification", "image", ("sdpa", "eager"), 0.01),
    ("Dinov2Config", {**_ENCODER, **_IMAGE}, "Dinov2ForImageClassification", "image", ("sdpa", "eager"), 0.01),
    (
        "MambaConfig", {"hidden_size": 256, "num_hidden_layers": 2, "vocab_size": VOCAB}, "MambaForCausalLM", "lm", ("",), 0.01,
    ),
    ("T5Config", _T5, "T5ForConditionalGeneration", "pair", ("eager",), 0.02),
    ("T5Config", {**_T5, "feed_forward_proj": "gated-gelu"}, "T5ForConditionalGeneration", "pair", ("eager",), 0.02),
    ("BartConfig", {**_PAIR, "max_position_embeddings": 256}, "BartForConditionalGeneration", "pair", ("sdpa", "eager"), 0.01),
    (
        "WhisperConfig", {**_PAIR, "max_source_positions": 200, "max_target_positions": 200},
        "WhisperForConditionalGeneration", "audio", ("sdpa", "eager"), 0.01,
    ),
    ("ResNetConfig", {**_STAGES, "embedding_size": 32}, "ResNetForImageClassification", "image", ("",), 0.02),
    ("ConvNextConfig", {**_STAGES, "image_size": 112}, "ConvNextForImageClassification", "image", ("",), 0.01),
    ("SwinConfig", _SWIN, "SwinForImageClassification", "image", ("eager",), 0.01),
    (
        "CLIPConfig", {"text_config": _CLIP_TEXT, "vision_config": _CLIP_IMAGE, "projection_dim": 128}, "CLIPModel", "clip",
        ("sdpa", "eager"), 0.02,
    ),
]  # fmt: skip


def inputs(kind: str, config: Any) -> dict[str, Any]:
    """One batch for a model."""
    ids = torch.randint(5, VOCAB, (BATCH, SEQ), generator=torch.Generator().manual_seed(0))
    side = getattr(config, "image_size", None) or 224
    pixels = torch.zeros(BATCH, 3, side, side)
    one = torch.zeros(BATCH, dtype=torch.long)
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "lm": lambda: {"input_ids": ids, "labels": ids.clone(), "use_cache": False},
        "class": lambda: {"input_ids": ids, "labels": one},
        "image": lambda: {"pixel_values": pixels, "labels": one},
        "pair": lambda: {"input_ids": ids, "labels": ids[:, :TARGETS].clone(), "use_cache": False},
        "audio": lambda: {
            "input_features": torch.zeros(BATCH, config.num_mel_bins, 2 * config.max_source_positions),
            "labels": ids[:, :TARGETS].clone(), "use_cache": False,
        },
        "clip": lambda: {"input_ids": ids, "pixel_values": torch.zeros(BATCH, 3, 112, 112), "return_loss": True},
    }  # fmt: skip
    if kind == "lm" and config.model_type == "bert":
        return {"input_ids": ids, "labels": ids.clone()}
    return makers[kind]()


def measured(config: Any, model_class: str, kind: str, attention: str, autocast: bool) -> int:
    """Bytes of the storages that autograd keeps after one forward pass."""
    cls = getattr(transformers, model_class)
    model = cls._from_config(config, attn_implementation=attention) if attention else cls(config)
    model = model.float().train()
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, Any] = {}

    def pack(t: Any) -> Any:
        if t.untyped_storage().data_ptr() not in own:
            kept.setdefault(t.untyped_storage().data_ptr(), t)
        return t

    batch = inputs(kind, config)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(**batch)
    return sum(t.untyped_storage().nbytes() for t in kept.values())


def folded(config: Any, kind: str, attention: str, precision: str) -> float:
    """The same from the fold: transformers' code on one device, the output not held."""
    recipe = TrainingRecipe(
        micro_batch=BATCH, seq_len=SEQ if kind in ("lm", "class", "clip") else TARGETS, encoder_seq_len=SEQ,
        framework="hf-trainer", precision=precision, attention={"sdpa": "flash", "": None}.get(attention, attention),
    )  # fmt: skip
    run = resolve(recipe, Parallelism(), profile("hf-trainer"))
    run = replace(run, profile=replace(run.profile, style=replace(run.style, logits_held="", scan="eager")))
    stage = fold_run(read_config(config.to_dict()), run)[0]
    return float(evaluate(stage.saved.by_monomial(), Basis(sizes_of(run))))


def config_of(name: str, fields: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, name)(**fields)


@pytest.mark.parametrize(
    ("config", "fields", "model", "kind", "attention", "tolerance"),
    [
        pytest.param(c, f, m, k, a, t, id=f"{m}-{f.get('feed_forward_proj', '')}{a or 'own'}")
        for c, f, m, k, ways, t in CASES
        for a in ways
    ],
)
def test_fp32(config: str, fields: dict[str, Any], model: str, kind: str, attention: str, tolerance: float) -> None:
    cfg = config_of(config, fields)
    expected = measured(cfg, model, kind, attention, autocast=False)
    assert folded(cfg, kind, attention, "fp32") == pytest.approx(expected, rel=tolerance)


AUTOCAST = ("LlamaForCausalLM", "Qwen3ForCausalLM", "ViTForImageClassification", "ResNetForImageClassification")
"""Not GPT-2 nor BERT: autocast on the CPU leaves ``pow`` and the loss in bf16 (they are traced: ``test_trace``)."""


@pytest.mark.parametrize("model", AUTOCAST)
def test_autocast(model: str) -> None:
    """bf16 autocast over fp32 parameters: casts of inputs and weights are kept (norms differ on the CPU elsewhere)."""
    config, fields, _, kind, ways, _ = next(c for c in CASES if c[2] == model)
    cfg = config_of(config, fields)
    expected = measured(cfg, model, kind, ways[0], autocast=True)
    assert folded(cfg, kind, ways[0], "bf16") == pytest.approx(expected, rel=0.02)

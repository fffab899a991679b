"""Small training jobs of many kinds: what they have in common is that a CPU runs a step of each in well under a second.

``JOBS`` maps a name to what makes the job.  Weights need no values, but where they say which expert a token goes to; inputs are
zeros, so that every index is valid.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from foretell.trace.job import Job

__all__ = ["JOBS"]

BATCH, TOKENS, WORDS, EXPERTS = 2, 48, 500, 4
DECODER: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": WORDS, "max_position_embeddings": 128,
}  # fmt: skip
Parameters = Iterable[Any]


# -- optimizers ---------------------------------------------------------------------------------------------


def adamw(parameters: Parameters, **options: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-4, **options)


def momentum(parameters: Parameters) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adafactor(parameters: Parameters) -> Any:
    return torch.optim.Adafactor(parameters, lr=1e-3)


FUSED = partial(adamw, fused=True)
FOREACH = partial(adamw, foreach=True)
LOOP = partial(adamw, foreach=False)


# -- plain torch --------------------------------------------------------------------------------------------


def mlp(**options: Any) -> Job:
    layers = [
        nn.Linear(64, 128),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(128, 128),
        nn.SiLU(),
        nn.BatchNorm1d(128),
        nn.Linear(128, 10),
    ]
    return Job(
        nn.Sequential(*layers),
        lambda: (torch.zeros(32, 64), torch.zeros(32, dtype=torch.long)),
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        **({"optimizer": adamw} | options),
    )


class Tagger(nn.Module):
    """Word embedding, a body that keeps the width, and a score of each word."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 64)
        self.body = body
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(words))
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), words.flatten())


def tagger(body: Callable[[], nn.Module], width: int = 64, tokens: int = TOKENS, **options: Any) -> Job:
    return Job(Tagger(body(), width), lambda: torch.zeros(BATCH, tokens, dtype=torch.long), **({"optimizer": adamw} | options))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Residual(nn.Module):
    """Blocks that are computed again in the backward pass, by segments and by hand."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(3)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = hidden + checkpoint(block, hidden, use_reentrant=self.reentrant)
        return hidden


class Unet(nn.Module):
    """Two levels of convolutions with group normalisation, pooling, a transposed convolution and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.inner = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.first(images)
        inner = functional.interpolate(self.inner(first), scale_factor=1.0, mode="nearest")
        return functional.mse_loss(self.last(torch.cat((first, self.up(inner)), 1)), images)


def convolutions(**options: Any) -> Job:
    return Job(Unet(), lambda: torch.zeros(BATCH, 3, 32, 32), **({"optimizer": momentum} | options))


def own_step() -> Job:
    """A step in the user's own words: gradients set to zero, clipped by value, and the loss shown."""
    base = mlp()

    def optimizers(parameters: Parameters) -> Any:
        return torch.optim.NAdam(parameters, lr=1e-3)

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss: Any = functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        f"{loss:.3f} {loss.item()}"

    return Job(base.model, base.batch, None, optimizers, step)


# -- transformers -------------------------------------------------------------------------------------------


def _language(
    config: Any,
    *,
    kind: str = "AutoModelForCausalLM",
    reentrant: bool | None = None,
    dtype: Any = None,
    attention: str = "sdpa",
    tokens: int = TOKENS,
    **options: Any,
) -> Job:
    import transformers

    model = getattr(transformers, kind).from_config(config, dtype=dtype or torch.float32, attn_implementation=attention)
    model.train()
    if reentrant is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})

    def batch() -> dict[str, Any]:
        words = torch.zeros(BATCH, tokens, dtype=torch.long)
        return {"input_ids": words, "labels": torch.zeros_like(words), "use_cache": False}

    return Job(model, batch, **({"optimizer": adamw} | options))


def gpt2(**options: Any) -> Job:
    import transformers

    return _language(transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=WORDS, n_positions=128), **options)


def llama(**options: Any) -> Job:
    import transformers

    return _language(transformers.LlamaConfig(**DECODER), **options)


def gemma(**options: Any) -> Job:
    import transformers

    config = transformers.Gemma3TextConfig(**DECODER | {"head_dim": 16, "num_hidden_layers": 3}, sliding_window=16)
    return _language(config, **options)


def mixtral(experts: str, **options: Any) -> Job:
    import transformers

    config = transformers.MixtralConfig(**DECODER, num_local_experts=EXPERTS, num_experts_per_tok=2)
    config._experts_implementation = experts
    job = _language(config, **options)
    _route_evenly(job)
    return job


def _route_evenly(job: Job) -> None:
    """Let word ``i`` go to the experts ``i`` and ``i + 1``, and every word come as often.

    All weights are zero but the embedding, whose rows pass through unchanged, the norms, and the routers.
    """
    with torch.no_grad():
        for name, parameter in job.model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
            if name.endswith("embed_tokens.weight"):
                parameter[:EXPERTS, :EXPERTS] = torch.eye(EXPERTS, dtype=parameter.dtype)
            if name.endswith("gate.weight"):
                here = torch.eye(EXPERTS, dtype=parameter.dtype)
                parameter[:, :EXPERTS] = 2 * here + here.roll(1, 0)
    plain = job.batch

    def batch() -> dict[str, Any]:
        made = plain()
        made["input_ids"] = (torch.arange(BATCH * TOKENS) % EXPERTS).view(BATCH, TOKENS)
        return dict(made)

    job.batch = batch


def mamba(**options: Any) -> Job:
    import transformers

    config = transformers.MambaConfig(num_hidden_layers=2, hidden_size=32, state_size=8, vocab_size=WORDS, use_mambapy=False)
    return _language(config, attention="eager", tokens=12, **options)


def t5(**options: Any) -> Job:
    import transformers

    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0
    )
    return _language(config, kind="AutoModelForSeq2SeqLM", attention="eager", **options)


def llama_lora(**options: Any) -> Job:
    import peft

    job = llama(**options)
    job.model = peft.get_peft_model(job.model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.05))
    return job


def bert(**options: Any) -> Job:
    import transformers

    shape = {k: v for k, v in DECODER.items() if k != "num_key_value_heads"}
    model = transformers.AutoModelForSequenceClassification.from_config(transformers.BertConfig(**shape)).train()

    def batch() -> dict[str, Any]:
        words = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.zeros(BATCH, dtype=torch.long)}

    return Job(model, batch, **({"optimizer": adamw} | options))


def _images(config: Any, side: int, **options: Any) -> Job:
    import transformers

    model = transformers.AutoModelForImageClassification.from_config(config).train()

    def batch() -> dict[str, Any]:
        return {"pixel_values": torch.zeros(BATCH, 3, side, side), "labels": torch.zeros(BATCH, dtype=torch.long)}

    return Job(model, batch, **({"optimizer": adamw} | options))


def vit(**options: Any) -> Job:
    import transformers

    shape = {k: DECODER[k] for k in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")}
    return _images(transformers.ViTConfig(**shape, image_size=32, patch_size=8, num_labels=10), 32, **options)


def resnet(**options: Any) -> Job:
    import transformers

    config = transformers.ResNetConfig(
        num_labels=10, depths=[1, 1, 2], layer_type="bottleneck", hidden_sizes=[32, 64, 64], embedding_size=16, stage_names=None
    )
    return _images(config, 64, **options)


def swin(**options: Any) -> Job:
    import transformers

    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
    )
    return _images(config, 32, **options)


def convnext(**options: Any) -> Job:
    import transformers

    config = transformers.ConvNextConfig(
        depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 32, 64], num_labels=10, drop_path_rate=0.1, image_size=64
    )
    return _images(config, 64, **options)


def whisper(**options: Any) -> Job:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, d_model=64, max_source_positions=32,
        max_target_positions=TOKENS, decoder_start_token_id=0, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration._from_config(config).train()

    def batch() -> dict[str, Any]:
        return {"input_features": torch.zeros(BATCH, 16, 64), "labels": torch.zeros(BATCH, TOKENS, dtype=torch.long)}

    return Job(model, batch, **({"optimizer": adamw} | options))


def clip(**options: Any) -> Job:
    import transformers

    tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**tower, "vocab_size": WORDS, "max_position_embeddings": TOKENS, "eos_token_id": 0},
        vision_config={**tower, "image_size": 32, "patch_size": 8}, projection_dim=32,
    )  # fmt: skip
    model = transformers.CLIPModel._from_config(config).train()

    def batch() -> dict[str, Any]:
        words = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        return {"input_ids": words, "pixel_values": torch.zeros(BATCH, 3, 32, 32), "return_loss": True}

    return Job(model, batch, **({"optimizer": adamw} | options))


# -- diffusers ----------------------------------------------------------------------------------------------


def diffusion(**options: Any) -> Job:
    diffusers: Any = importlib.import_module("diffusers")  # its classes have no types
    model = diffusers.UNet2DConditionModel(
        sample_size=16, cross_attention_dim=32, block_out_channels=(16, 32), attention_head_dim=4, norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip

    def batch() -> dict[str, Any]:
        return {
            "sample": torch.zeros(BATCH, 4, 16, 16),
            "timestep": torch.zeros(BATCH, dtype=torch.long),
            "encoder_hidden_states": torch.zeros(BATCH, 20, 32),
        }

    def loss(model: Any, batch: dict[str, Any]) -> Any:
        return functional.mse_loss(model(**batch).sample, torch.zeros_like(batch["sample"]))

    return Job(model.train(), batch, loss, **({"optimizer": adamw} | options))


BF16: dict[str, Any] = {"dtype": torch.bfloat16}
AUTOCAST: dict[str, Any] = {"autocast": "bfloat16"}

JOBS: dict[str, Callable[[], Job]] = {
    "mlp": mlp,
    "mlp, SGD with momentum, 3 micro-steps, clipped": partial(mlp, optimizer=momentum, accumulate=3, clip=1.0),
    "mlp, Adafactor": partial(mlp, optimizer=adafactor),
    "mlp, autocast": partial(mlp, **AUTOCAST),
    "mlp, own step": own_step,
    "mlp, no optimizer": partial(mlp, optimizer=None),
    "LSTM": partial(tagger, partial(nn.LSTM, 64, 96, 2, batch_first=True, dropout=0.1), 96),
    "GRU": partial(tagger, partial(nn.GRU, 64, 96, batch_first=True), 96, tokens=12),
    "torch encoder": partial(tagger, encoder, clip=1.0),
    "torch encoder, autocast, fused AdamW": partial(tagger, encoder, optimizer=FUSED, **AUTOCAST),
    "checkpoint, re-entrant": partial(tagger, partial(Residual, reentrant=True)),
    "checkpoint": partial(tagger, partial(Residual, reentrant=False), accumulate=2),
    "convolutions": convolutions,
    "GPT-2": gpt2,
    "GPT-2, bf16": partial(gpt2, **BF16),
    "GPT-2, eager attention, autocast": partial(gpt2, attention="eager", **AUTOCAST),
    "Llama": llama,
    "Llama, bf16, fused AdamW, clipped": partial(llama, optimizer=FUSED, clip=1.0, **BF16),
    "Llama, foreach AdamW, 2 micro-steps": partial(llama, optimizer=FOREACH, accumulate=2),
    "Llama, for-loop AdamW": partial(llama, optimizer=LOOP),
    "Llama, checkpoint": partial(llama, reentrant=False),
    "Llama, re-entrant checkpoint, autocast": partial(llama, reentrant=True, **AUTOCAST),
    "Llama, LoRA, bf16": partial(llama_lora, **BF16),
    "Llama, LoRA, autocast, 2 micro-steps": partial(llama_lora, accumulate=2, **AUTOCAST),
    "Llama, Adafactor": partial(llama, optimizer=adafactor, **BF16),
    "Gemma 3": gemma,
    "Mixtral, grouped_mm": partial(mixtral, "grouped_mm", **BF16),
    "Mixtral, grouped_mm, fp32": partial(mixtral, "grouped_mm"),
    "Mixtral, batched_mm": partial(mixtral, "batched_mm"),
    "Mixtral, eager": partial(mixtral, "eager"),
    "Mamba": mamba,
    "T5": t5,
    "BERT": bert,
    "BERT, autocast, foreach AdamW": partial(bert, optimizer=FOREACH, **AUTOCAST),
    "ViT": vit,
    "ViT, autocast, SGD with momentum": partial(vit, optimizer=momentum, **AUTOCAST),
    "ResNet": partial(resnet, optimizer=momentum),
    "Swin": swin,
    "ConvNext": convnext,
    "Whisper": whisper,
    "CLIP": clip,
    "UNet": diffusion,
}  # fmt: skip

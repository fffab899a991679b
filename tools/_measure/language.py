"""Plain modules of language models: Llama-like (dense, or with experts as Mixtral has them) and GPT-2-like.

Which tensors they make and keep is as in the classes of transformers 5 (``models/{llama,mixtral,gpt2}/modeling_*.py``): norms
written out in fp32, rotary positions by concatenation, a loss on an fp32 copy of all logits.
Shapes in names and comments: B batch, S tokens, H heads, W hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from _measure.configurations import Shape

__all__ = ["Adapted", "Decoder", "Gpt2", "adapt"]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, causal: bool = True) -> Tensor:
    """Return attention [B, S, W] of [B, H, S, D]; with a mask that is added, scores are written out."""
    if mask is None:
        grouped = q.size(1) != k.size(1)
        out = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal, enable_gqa=grouped)
    else:
        k, v = (_repeated(t, q.size(1) // t.size(1)) for t in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * q.size(-1) ** -0.5
        scores = scores + mask
        scores = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        scores = functional.dropout(scores, p=dropout)
        out = torch.matmul(scores, v)
    return out.transpose(1, 2).contiguous().flatten(2)


def _repeated(heads: Tensor, times: int) -> Tensor:
    return heads if times == 1 else heads.repeat_interleave(times, dim=1)


def causal_mask(tokens: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what is added to scores [1, 1, S, S]."""
    return torch.full((1, 1, tokens, tokens), torch.finfo(dtype).min, dtype=dtype, device=device).triu(1)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each token's successor, of an fp32 copy of the logits [B, S, vocabulary]."""
    wide = logits.float()
    following = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return functional.cross_entropy(wide.view(-1, wide.size(-1)), following.view(-1), ignore_index=-100)


# -- Llama and Mixtral --------------------------------------------------------------------------------------


class RmsNorm(nn.Module):
    """Root mean square norm, written out in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-5)
        return self.weight * x.to(kind)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.size = shape["hidden_size"], shape["head_dim"]
        self.q_proj = nn.Linear(width, shape["num_attention_heads"] * self.size, bias=False)
        self.k_proj = nn.Linear(width, shape["num_key_value_heads"] * self.size, bias=False)
        self.v_proj = nn.Linear(width, shape["num_key_value_heads"] * self.size, bias=False)
        self.o_proj = nn.Linear(shape["num_attention_heads"] * self.size, width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        q, k = _rotated(q, k, *rotary)
        out = attend(q, k, v, mask, 0.0)
        return self.o_proj(out)  # type: ignore[no-any-return]


def _rotated(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    return (q * cosine) + (_turned(q) * sine), (k * cosine) + (_turned(k) * sine)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Gated MLPs of which each token takes some; tokens are sorted by expert for grouped matrix products."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.count, self.taken = shape["num_local_experts"], shape["num_experts_per_tok"]
        width, inner = shape["hidden_size"], shape["intermediate_size"]
        self.router = nn.Parameter(torch.empty(self.count, width))
        self.gate_up_proj = nn.Parameter(torch.empty(self.count, 2 * inner, width))
        self.down_proj = nn.Parameter(torch.empty(self.count, width, inner))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.view(-1, shape[-1])
        scores = functional.softmax(functional.linear(x, self.router).float(), dim=-1)
        weights, experts = torch.topk(scores, self.taken, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return self._mixed(x, weights.to(x.dtype).flatten(), experts.flatten()).view(shape)

    def _mixed(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return the weighted sum of the experts' outputs; ``weights`` and ``experts``: of each token's choices in turn."""
        ordered, order = torch.sort(experts)
        counted = ordered.int() if x.is_cuda else ordered.float()  # torch.histc takes no integers on a CPU
        ends = torch.histc(counted, bins=self.count, min=0, max=self.count - 1).cumsum(0, dtype=torch.int32)
        chosen = x[order // self.taken]
        gate, up = torch._grouped_mm(chosen, self.gate_up_proj.transpose(1, 2), offs=ends).chunk(2, dim=-1)  # noqa: SLF001
        inner = functional.silu(gate) * up
        out = torch._grouped_mm(inner, self.down_proj.transpose(1, 2), offs=ends)  # noqa: SLF001
        out = out * weights[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.size(0), device=order.device)
        return out[back].view(-1, self.taken, x.size(-1)).sum(dim=1)


class Layer(nn.Module):
    """Attention, then an MLP or experts, each on a norm of the stream and added to it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape["hidden_size"]
        self.self_attn = Attention(shape)
        self.mlp = Experts(shape) if "num_local_experts" in shape else Mlp(width, shape["intermediate_size"])
        self.input_norm = RmsNorm(width)
        self.mlp_norm = RmsNorm(width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        kept = x
        x = self.input_norm(x)
        x = self.self_attn(x, rotary, mask)
        x = kept + x
        kept = x
        x = self.mlp_norm(x)
        x = self.mlp(x)
        return kept + x


class Decoder(nn.Module):
    """A decoder; its forward gives the loss of words and their labels [B, S]."""

    def __init__(self, shape: Shape, *, eager: bool = False, recompute: str = "none") -> None:
        super().__init__()
        self.eager, self.recompute = eager, recompute
        width, size = shape["hidden_size"], shape["head_dim"]
        self.embed = nn.Embedding(shape["vocab_size"], width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["num_hidden_layers"]))
        self.norm = RmsNorm(width)
        self.head = None if shape["tie_word_embeddings"] else nn.Linear(width, shape["vocab_size"], bias=False)
        steps = torch.arange(0, size, 2, dtype=torch.float32) / size
        self.register_buffer("rates", 1.0 / 10000.0**steps, persistent=False)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(words)
        mask = causal_mask(words.size(1), x.dtype, x.device) if self.eager else None
        rotary = self._rotary(words.size(1), x.dtype, x.device)
        for layer in self.layers:
            if self.recompute == "none":
                x = layer(x, rotary, mask)
            else:
                x = checkpoint(layer, x, rotary, mask, use_reentrant=self.recompute == "full-reentrant")
        x = self.norm(x)
        logits = functional.linear(x, self.embed.weight) if self.head is None else self.head(x)
        return token_loss(logits, labels)

    def _rotary(self, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        rates: Any = self.rates
        angles = torch.arange(tokens, device=device).unsqueeze(0).unsqueeze(-1).float() * rates
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


# -- adapters -----------------------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A frozen matrix with a low-rank one beside it, in fp32 as peft keeps adapters of a half-precision base."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.into = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.out = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)
        self.scale = 8 / rank

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        kind = result.dtype
        result = result + self.out(self.into(x.to(torch.float32))) * self.scale
        return result.to(kind)  # type: ignore[no-any-return]


def adapt(model: nn.Module, rank: int, targets: tuple[str, ...]) -> None:
    """Freeze a model and put adapters beside the matrices whose names end in one of ``targets``."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for owner in list(model.modules()):
        for name, module in list(owner.named_children()):
            if name in targets and isinstance(module, nn.Linear):
                setattr(owner, name, Adapted(module, rank))


# -- GPT-2 --------------------------------------------------------------------------------------------------


class Gpt2Layer(nn.Module):
    """Attention by one fused projection, and an MLP, both with biases and dropout."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads = shape["n_embd"], shape["n_head"]
        self.attention_dropout = shape["attn_pdrop"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(shape["resid_pdrop"])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self._attended(self.ln_1(x), mask)
        kept = x
        x = self.ln_2(x)
        x = functional.gelu(self.up(x), approximate="tanh")
        x = self.dropout(self.down(x))
        return kept + x

    def _attended(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        out = attend(q, k, v, mask, self.attention_dropout)
        return self.dropout(self.proj(out))  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """GPT-2; its forward gives the loss of words and their labels [B, S]."""

    def __init__(self, shape: Shape, *, eager: bool = False, recompute: str = "none") -> None:
        super().__init__()
        self.eager, self.recompute = eager, recompute
        self.words = nn.Embedding(shape["vocab_size"], shape["n_embd"])
        self.places = nn.Embedding(shape["n_positions"], shape["n_embd"])
        self.dropout = nn.Dropout(shape["embd_pdrop"])
        self.layers = nn.ModuleList(Gpt2Layer(shape) for _ in range(shape["n_layer"]))
        self.norm = nn.LayerNorm(shape["n_embd"])

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        places = torch.arange(words.size(1), device=words.device).unsqueeze(0)
        x = self.dropout(self.words(words) + self.places(places))
        mask = causal_mask(words.size(1), x.dtype, x.device) if self.eager else None
        for layer in self.layers:
            if self.recompute == "none":
                x = layer(x, mask)
            else:
                x = checkpoint(layer, x, mask, use_reentrant=self.recompute == "full-reentrant")
        logits = functional.linear(self.norm(x), self.words.weight)
        return token_loss(logits, labels)

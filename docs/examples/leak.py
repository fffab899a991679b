"""A training step that runs out of memory, and the same step mended.  Traced by docs/trace.md."""

import torch
from torch import nn
from torch.nn import functional

from foretell.trace import Job

VOCABULARY, WIDTH, LAYERS, LENGTH = 32_000, 1024, 24, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 16, WIDTH // 16).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def step(model, batch, optimizer, leak):
    """Four micro-batches, then an update; the losses are kept to print their mean."""
    losses = []
    for tokens in batch:
        loss = model(tokens) / len(batch)
        loss.backward(retain_graph=leak)  # somebody needed it once
        losses.append(loss if leak else loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses)


def batch():
    return [torch.zeros(6, LENGTH, dtype=torch.long) for _ in range(4)]


def job():
    return Job(Model().bfloat16(), batch, optimizer=torch.optim.AdamW, step=lambda m, b, o: step(m, b, o, leak=True))


def mended():
    return Job(Model().bfloat16(), batch, optimizer=torch.optim.AdamW, step=lambda m, b, o: step(m, b, o, leak=False))

"""Small models that repeat a layer, and some that only seem to; run as a program it compares both ways to record them.

    python tests/trace/repeated.py

writes one JSON object a line: the job's name, a word of why it cannot be continued (empty: it can), how it was recorded, whether
the events are those of the full recording, and the peaks (bytes allocated and reserved) of both under several allocator settings.
It needs a process of its own: CUDA paths are taught to torch for good.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from foretell.cost.allocator import AllocatorSettings
from foretell.trace.engine.session import Settings, Traced, machine
from foretell.trace.engine.whole import record_all
from foretell.trace.events import Recording
from foretell.trace.job import Job
from foretell.trace.repeat import same_events
from foretell.trace.replay import replay

__all__ = ["JOBS"]

BATCH, TOKENS, WIDTH, WORDS, LAYERS, WORLD = 2, 256, 512, 1000, 8, 8
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:32")

Run = Callable[[Any, torch.Tensor], torch.Tensor]
Numbered = Callable[[int], nn.Module]


# -- a model around layers ----------------------------------------------------------------------------------


class Block(nn.Module):
    """A gated layer with dropout that knows its number and does not ask for it."""

    def __init__(self, number: int = 0, inner: int = 4 * WIDTH, rate: float = 0.1) -> None:
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)
        self.dropout = nn.Dropout(rate)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = hidden + self.dropout(self.down(functional.gelu(self.up(self.norm(hidden)))))
        return out


class Every5th(Block):
    """A layer that does more where its number says so."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = super().forward(hidden)
        return torch.sin(hidden) if self.number % 5 == 4 else hidden


class Model(nn.Module):
    """Words, layers, and a score of each word."""

    def __init__(self, layers: nn.Module, run: Run | None = None, **more: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = layers
        self.head = nn.Linear(WIDTH, WORDS)
        self.run = run
        for name, module in more.items():
            setattr(self, name, module)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        hidden = self.run(self, hidden) if self.run else in_turn(self, hidden)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), words.flatten())


def words() -> torch.Tensor:
    return torch.zeros(BATCH, TOKENS, dtype=torch.long)


def adamw(parameters: Iterable[Any], **options: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-4, **options)


def job(model: nn.Module, **options: Any) -> Job:
    return Job(model, words, **({"optimizer": adamw} | options))


def listed(make: Numbered = Block, count: int = LAYERS) -> nn.ModuleList:
    return nn.ModuleList(make(i) for i in range(count))


# -- ways to go through layers ------------------------------------------------------------------------------


def in_turn(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    for layer in model.layers:
        hidden = layer(hidden)
    return hidden


def by_name(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    for layer in model.layers.values():
        hidden = layer(hidden)
    return hidden


def again(*, reentrant: bool) -> Run:
    def run(model: Any, hidden: torch.Tensor) -> torch.Tensor:
        for layer in model.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=reentrant)
        return hidden

    return run


def down_and_up(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    kept = []
    for layer in model.layers:
        hidden = layer(hidden)
        kept.append(hidden)
    for layer in model.ups:
        hidden = layer(hidden + kept.pop())
    return hidden


def mean_of_all(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    kept = [hidden]
    for layer in model.layers:
        kept.append(layer(kept[-1]))
    return torch.stack(kept).mean(0)


def one_more_at_5(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    for i, layer in enumerate(model.layers):
        hidden = layer(hidden)
        if i == 5:
            hidden = hidden + torch.relu(hidden)
    return hidden


def heads_at_1_4_6(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    taken = []
    for i, layer in enumerate(model.layers):
        hidden = layer(hidden)
        if i in (1, 4, 6):
            taken.append(hidden)
    return hidden + sum(torch.tanh(one) for one in taken)


def counted(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    for i in range(LAYERS):
        hidden = model.layers[i](hidden)
    return hidden


def one_for_all(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    for _ in range(LAYERS):
        hidden = model.layers[0](hidden)
    return hidden


# -- jobs ---------------------------------------------------------------------------------------------------


def torch_encoder() -> Job:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, WIDTH, batch_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return job(Model(encoder, lambda model, hidden: model.layers(hidden)), autocast="bfloat16", clip=1.0)


def in_sequence() -> Job:
    model = Model(nn.Sequential(*listed()))
    return job(model, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def first_frozen() -> Job:
    model = Model(listed())
    for part in (model.embed, model.layers[:2]):  # type: ignore[index]
        part.requires_grad_(False)
    return job(model, optimizer=lambda p: adamw(p, fused=True))


def made_before() -> Job:
    model = Model(listed())
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() > 1) == big], "weight_decay": 0.1 * big} for big in (True, False)
    ]
    return job(model, optimizer=adamw(groups, foreach=False))


def sharded(*, reshard: bool, **options: Any) -> Job:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Model(listed())
    mesh = init_device_mesh("cuda", (WORLD,))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.layers:  # type: ignore[attr-defined]
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    return job(model, **options)


def data_parallel() -> Job:
    return job(nn.parallel.DistributedDataParallel(Model(listed())))


def named(kind: str, config: Any, **options: Any) -> Job:
    import transformers

    model = getattr(transformers, kind).from_config(config).train()
    return Job(model, lambda: {"input_ids": words(), "labels": words()}, **({"optimizer": adamw} | options))


def gpt2() -> Job:
    import transformers

    config = transformers.GPT2Config(n_layer=8, n_embd=WIDTH, n_head=4, vocab_size=WORDS, n_positions=TOKENS, use_cache=False)
    return named("AutoModelForCausalLM", config)


def llama_lora() -> Job:
    import peft
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=8,
        hidden_size=WIDTH,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=WORDS,
    )
    made = named("AutoModelForCausalLM", config)  # keeps keys and values of each layer under its number
    made.model = peft.get_peft_model(made.model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    return made


CONTINUED: dict[str, Callable[[], Job]] = {
    "list of layers": lambda: job(Model(listed())),
    "nn.Sequential, SGD with momentum": in_sequence,
    "nn.ModuleDict, Adafactor": lambda: job(
        Model(nn.ModuleDict({f"at {i}": Block(i) for i in range(LAYERS)}), by_name), optimizer=torch.optim.Adafactor
    ),
    "torch encoder, autocast, clipped": torch_encoder,
    "two kinds in turn": lambda: job(Model(listed(lambda i: Block(i, (2 + 2 * (i % 2)) * WIDTH), 12))),
    "dropout that rises": lambda: job(Model(listed(lambda i: Block(i, rate=0.02 * i)))),
    "checkpoint, fp16": lambda: job(Model(listed(), again(reentrant=False)), autocast="float16"),
    "re-entrant checkpoint, 2 micro-steps": lambda: job(Model(listed(), again(reentrant=True)), accumulate=2),
    "first layers frozen, fused AdamW": first_frozen,
    "optimizer made before, in groups": made_before,
    "down and up": lambda: job(Model(listed(), down_and_up, ups=listed())),
    "mean of all layers": lambda: job(Model(listed(), mean_of_all)),
    "FSDP2, fp32 reduce": lambda: sharded(reshard=True),
    "FSDP2, weights kept, clipped": lambda: sharded(reshard=False, clip=1.0),
    "GPT-2": gpt2,
    "Llama, LoRA": llama_lora,
}
"""Jobs that are recorded by repetition."""

FULL: dict[str, tuple[str, Callable[[], Job]]] = {
    "model treats layer 5 otherwise": ("alike", lambda: job(Model(listed(), one_more_at_5))),
    "model takes three layers' outputs": ("fewer", lambda: job(Model(listed(), heads_at_1_4_6))),
    "layer asks for its number": ("alike", lambda: job(Model(listed(Every5th)))),
    "layers counted elsewhere": ("IndexError", lambda: job(Model(listed(), counted))),
    "one layer used many times": ("no more than a few", lambda: job(Model(listed(count=1), one_for_all))),
    "data parallel": ("buckets", data_parallel),
}
"""Jobs that have to be recorded as they are, and a word of why."""

JOBS = {name: ("", make) for name, make in CONTINUED.items()} | FULL


# -- comparison ---------------------------------------------------------------------------------------------


def peaks(recording: Recording) -> list[list[int]]:
    """Return the peaks in bytes, allocated and reserved, for each of the settings."""
    seen = [replay(recording, AllocatorSettings.parse(text)) for text in SETTINGS]
    return [[one.peak_allocated.bytes, one.peak_reserved.bytes] for one in seen]


def main() -> None:
    warnings.simplefilter("ignore")
    here = machine(Settings(world=WORLD))
    for name, (why, make) in JOBS.items():
        with Traced(make, here) as traced:
            part = record_all(traced, full=False, always=True)
        with Traced(make, here) as traced:
            full = record_all(traced, full=True)
        told = {
            "job": name,
            "why": why,
            "how": part.about["repetition"],
            "same": same_events(part, full),
            "part": peaks(part),
            "full": peaks(full),
            "modules": [s.module for s in part.storages] == [s.module for s in full.storages],
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Made-up recordings of a transformer's training steps, and the smallest replay that views can be tried on."""

from __future__ import annotations

import random

from foretell.trace.events import Category, Phase, PhaseName, Recording, Storage

MIB = 1 << 20


class _Writer:
    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.order: list[int] = []
        self.phases: list[Phase] = []

    def phase(self, name: PhaseName, step: int, micro: int = 0) -> None:
        self.phases.append(Phase(name, step, micro, len(self.order)))

    def new(self, size: int, op: str, module: str, line: str, category: Category) -> int:
        index = len(self.storages)
        self.storages.append(Storage(size, op, len(self.phases) - 1, module, line, 0, category))
        self.order.append(index)
        return index

    def free(self, *indices: int) -> None:
        self.order += [~index for index in indices]

    def brief(self, size: int, op: str, module: str, line: str, category: Category = "temporary") -> None:
        self.free(self.new(size, op, module, line, category))


_SAVED = (
    ("input_layernorm", "aten::rms_norm", 64, 1),
    ("self_attn.q_proj", "aten::mm", 243, 1),
    ("self_attn.k_proj", "aten::mm", 244, 0.25),
    ("self_attn.v_proj", "aten::mm", 245, 0.25),
    ("self_attn", "aten::_scaled_dot_product_flash_attention", 98, 1.01),
    ("self_attn.o_proj", "aten::mm", 281, 1),
    ("mlp.gate_proj", "aten::mm", 176, 3.5),
    ("mlp.act_fn", "aten::silu", 176, 3.5),
    ("mlp.up_proj", "aten::mm", 176, 3.5),
    ("mlp", "aten::mul", 176, 3.5),
    ("mlp.down_proj", "aten::mm", 177, 1),
)
_FILE = "transformers/models/llama/modeling_llama.py"
_OPTIMIZER = "my_project/train.py:88"


def transformer(
    layers: int = 16, steps: int = 2, *, hidden: int = 32 * MIB, tail: int = 0, micro: int = 1, chunks: int = 1
) -> Recording:
    """Return steps of a model whose layers save about 20 times ``hidden`` bytes; ``tail``: events added after them.

    ``chunks`` cuts every saved tensor into parts, to have more events of the same bytes.
    """
    w = _Writer()
    w.phase("load", 0)
    weights = [w.new(6 * hidden, "aten::empty", "model.embed_tokens", f"{_FILE}:380", "parameter")]
    for i in range(layers):
        weights += [
            w.new(int(hidden * k), "aten::empty", f"model.layers.{i}.{name}", f"{_FILE}:{line}", "parameter")
            for name, line, k in (("self_attn.q_proj", 200, 1.2), ("mlp.gate_proj", 160, 5.2))
        ]
    states: list[int] = []
    for step in range(steps):
        grads: list[int] = []
        for m in range(micro):
            w.phase("forward", step, m)
            batch = w.new(MIB // 4, "aten::_to_copy", "", "my_project/train.py:61", "input")
            saved = [w.new(hidden, "aten::embedding", "model.embed_tokens", f"{_FILE}:381", "activation")]
            for i in range(layers):
                for name, op, line, k in _SAVED:
                    place = f"model.layers.{i}.{name}", f"{_FILE}:{line}"
                    if op == "aten::mm":
                        w.brief(32 * MIB, op, *place, "workspace")
                    w.brief(hidden, "aten::_to_copy", *place)
                    saved += [w.new(int(hidden * k / chunks), op, *place, "activation") for _ in range(chunks)]
            loss = f"{_FILE}:455"
            logits = w.new(16 * hidden, "aten::mm", "lm_head", loss, "activation")
            upcast = w.new(32 * hidden, "aten::_to_copy", "", "transformers/loss/loss_utils.py:55", "activation")
            w.phase("backward", step, m)
            w.brief(32 * hidden, "aten::_log_softmax_backward_data", "", "transformers/loss/loss_utils.py:36")
            w.free(upcast, logits)
            for at in reversed(range(len(saved))):
                storage = w.storages[saved[at]]
                w.brief(storage.bytes, "aten::mm", storage.module, storage.line)
                w.free(saved[at])
            if not grads:
                grads = [
                    w.new(w.storages[i].bytes, "aten::mm", w.storages[i].module, w.storages[i].line, "gradient")
                    for i in reversed(weights)
                ]
            w.free(batch)
        w.phase("optimizer", step)
        if not states:
            states = [w.new(w.storages[i].bytes, "aten::zeros_like", "", _OPTIMIZER, "optimizer") for i in weights for _ in "mv"]
        temporaries = [w.new(w.storages[i].bytes, "aten::_foreach_sqrt", "", _OPTIMIZER, "temporary") for i in weights]
        w.free(*temporaries)
        w.free(*grads)
    if tail:
        w.phase("other", steps - 1)
        for _ in range(tail // 2):
            w.brief(MIB, "aten::add", "", "my_project/train.py:99")
    return Recording(w.storages, w.order, w.phases, {"model": f"a made-up transformer, {layers} layers", "torch": "2.13.0"})


def anything(events: int, *, seed: int = 1, streams: int = 3) -> Recording:
    """Return allocations of 10 bytes to 200 MB and frees in no order at all, on several streams."""
    chance = random.Random(seed)  # noqa: S311  # sizes, no secrets
    w = _Writer()
    w.phase("forward", 0)
    live: list[int] = []
    while len(w.order) < events:
        if live and chance.random() < 0.48:
            w.free(live.pop(chance.randrange(len(live))))
        else:
            place = f"part.{chance.randrange(4)}", f"model.py:{chance.randrange(9)}"
            live.append(w.new(int(10 ** chance.uniform(1, 8.3)), "aten::mm", *place, "activation"))
            w.storages[-1].stream = chance.randrange(streams)
    return Recording(w.storages, w.order, w.phases)


def waiting(events: int, *, seed: int = 1, share: float = 0.3) -> Recording:
    """Return :func:`anything`, of which a share of the storages was given up some time before another stream was done with it."""
    made = anything(events, seed=seed)
    chance = random.Random(seed)  # noqa: S311  # times, no secrets
    begins = {entry: at for at, entry in enumerate(made.order) if entry >= 0}
    for at, entry in enumerate(made.order):
        if entry < 0 and chance.random() < share:
            made.asked[~entry] = chance.randint(begins[~entry] + 1, at)
    return made

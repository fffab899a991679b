"""A rehearsal without a GPU: tiny shapes on the CPU, made-up counters, and configurations that misbehave.

What it writes has the form of a measurement and says that it is none.
"""

from __future__ import annotations

import gzip
import os
import pickle
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from _measure.configurations import CONFIGURATIONS, Configuration, Shape

__all__ = ["DRY", "Stub", "misbehave"]

_TEXT: Final[Shape] = {"vocab_size": 256, "max_position_embeddings": 64}
_TINY: Final[dict[str, Shape]] = {
    "llama": {**_TEXT, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 16, "intermediate_size": 128},
    "mixtral": {**_TEXT, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16, "intermediate_size": 128, "num_local_experts": 4},
    "gpt2": {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "vit": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
            "num_labels": 10},
    "resnet": {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2], "num_labels": 10},
    "diffusers": {"sample_size": 16, "block_out_channels": [32, 64], "layers_per_block": 1, "attention_head_dim": 4,
                  "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
                  "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "cross_attention_dim": 32},
}  # fmt: skip
_PIXELS: Final = {"vit": 32, "resnet": 32, "diffusers": 16}
_MISBEHAVING: Final = {
    "dry-fails": ("an error in the model's code", 15.0),
    "dry-oom": ("the end of the device's memory", 15.0),
    "dry-hangs": ("a run that does not end", 0.5),
    "dry-dies": ("a process that is gone without a word", 15.0),
}
"""Name -> (what for, seconds that it usually takes)."""
_HANG_SECONDS: Final = 600.0
_MIB: Final = 2**20


def _tiny(c: Configuration) -> Configuration:
    kind = c.model_type
    tokens = None if c.tokens is None else 32
    return replace(
        c,
        shape=c.shape | _TINY[kind],
        micro_batch=2,
        tokens=tokens,
        pixels=_PIXELS.get(kind),
        limit_bytes=None,
        lora_rank=c.lora_rank and 4,
    )


DRY: Final[tuple[Configuration, ...]] = (
    *(_tiny(c) for c in CONFIGURATIONS),
    *(
        Configuration(name=name, why=why, shape={"model_type": "dry"}, library="dry", micro_batch=1, tokens=1, seconds=seconds)
        for name, (why, seconds) in _MISBEHAVING.items()
    ),
)
"""Every configuration with a tiny shape, and those that misbehave."""


def misbehave(name: str) -> None:
    """Do what the configuration of that name is for.

    Raises:
        RuntimeError: that is what ``dry-fails`` is for.
        torch.OutOfMemoryError: that is what ``dry-oom`` is for.

    """
    if name == "dry-fails":
        raise RuntimeError("the model's code is wrong")
    if name == "dry-dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "dry-hangs":
        time.sleep(_HANG_SECONDS)
    import torch  # noqa: PLC0415

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (a rehearsal)")


class Stub:
    """Counters that count up: every number is made up, and grows in the order in which a real one would."""

    device: Final = "cpu"

    def __init__(self) -> None:
        """Begin with nothing held."""
        self.readings = 0

    def begin(self, limit_bytes: int | None) -> None:
        """Do nothing: there is no device."""

    def reset(self) -> None:
        """Let the next step take a little more."""
        self.readings += 1

    def read(self) -> dict[str, int]:
        """Return made-up peaks."""
        size = (8 + self.readings) * _MIB
        held = {"allocated": size, "active": size, "reserved": size + 2 * _MIB, "requested": size - 4096}
        return held | {"retries": 0, "ooms": 0, "segments": 4, "held": size // 2, "cached": size + 2 * _MIB}

    def outside(self) -> dict[str, int | None]:
        """Return a made-up context of 400 MiB, on a device that nobody manages."""
        used = 400 * _MIB + self.read()["cached"]
        unknown = dict.fromkeys(("managed_before", "managed_used", "managed_rise", "managed_process"))
        return {"device_total": 1024 * _MIB, "device_used": used, **unknown}

    def machine(self) -> dict[str, Any]:
        """Say that there is no device."""
        import torch  # noqa: PLC0415

        none = dict.fromkeys(("compute_capability", "driver", "cuda", "cudnn"))
        return {"gpu": "none (a rehearsal on the CPU)", "total_bytes": 1024 * _MIB, "torch": str(torch.__version__), **none}

    def history(self) -> None:
        """Do nothing: nothing is recorded."""

    def write_history(self, path: Path) -> None:
        """Write the snapshot of one segment and three blocks, one of which is freed."""
        base, events = 0x7F0000000000, []
        events.append({"action": "segment_alloc", "addr": base, "size": 20 * _MIB, "stream": 0, "frames": []})
        events += [
            {"action": "alloc", "addr": base + at * 4 * _MIB, "size": 4 * _MIB, "stream": 0, "frames": []} for at in range(3)
        ]
        events += [
            {"action": action, "addr": base + 4 * _MIB, "size": 4 * _MIB, "stream": 0, "frames": []}
            for action in ("free_requested", "free_completed")
        ]
        sizes = ((4, "active_allocated"), (4, "inactive"), (4, "active_allocated"), (8, "inactive"))
        blocks = [{"size": mib * _MIB, "requested_size": mib * _MIB, "state": state, "frames": []} for mib, state in sizes]
        segment = {
            "device": 0, "address": base, "total_size": 20 * _MIB, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks,
        }  # fmt: skip
        made = {"segments": [segment], "device_traces": [events], "allocator_settings": {}}
        path.write_bytes(gzip.compress(pickle.dumps(made)))

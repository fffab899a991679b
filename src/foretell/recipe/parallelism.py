"""Parallelism: how ranks divide a training job."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from foretell.errors import InputError

Sharding = Literal["none", "ddp", "fsdp1", "fsdp2", "deepspeed", "distopt", "simplefsdp", "megatron-fsdp"]
Schedule = Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe"]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of every kind of parallelism.  World size is ``dp x tp x pp x cp``.

    Expert parallelism is carved out of ``dp x cp`` (times ``tp`` where expert TP is 1), as Megatron-Core does:
    the experts' own data-parallel degree is ``dp*cp*tp / (ep*etp)``.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """Expert tensor parallelism (None: equal to ``tp``, Megatron-Core's default)."""
    vpp: int = 1
    """Model chunks per pipeline rank (virtual stages)."""
    sp: bool | None = None
    """Sequence parallelism inside the TP group (None: the framework's default)."""
    zero: int = 0
    sharding: Sharding | None = None
    """Who shards states over data parallelism (None: the framework's default)."""
    hsdp_replicas: int = 1
    """Replicas of a hybrid-sharded group: states are divided by ``dp*cp / hsdp_replicas``."""
    schedule: Schedule | None = None
    layout: tuple[int, ...] | None = None
    """Layers per pipeline stage (None: as even as the framework makes it)."""
    reshard: Literal["default", "always", "never"] = "default"

    @property
    def world(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def expert_tp(self) -> int:
        return self.tp if self.etp is None else self.etp

    def with_(self, **changes: object) -> Parallelism:
        return replace(self, **changes)  # type: ignore[arg-type]


def parse_layout(text: str) -> tuple[tuple[int, ...], int]:
    """Layers of each pipeline chunk and the number of multi-token-prediction layers, from a layout string.

    A comma list (``8,12,12``), or Megatron-Core's ``--pipeline-model-parallel-layout``: ``E`` embedding, ``t`` layer,
    ``m`` prediction layer, ``L`` loss, ``|`` between chunks, ``x*3`` and ``(...)*3`` repetition.

    >>> parse_layout("Et*3|(tt|)*2tmL")
    ((3, 2, 2, 1), 1)
    """
    plain = text.strip()
    if plain and all(part.strip().isdigit() for part in plain.split(",")):
        return tuple(int(part) for part in plain.split(",")), 0
    problem = "is not a layout"
    if len(plain) > 1000 or not re.fullmatch(r"[EtmL|()*0-9]+", plain):
        raise InputError(problem, field="pp_layout", value=text, allowed="8,12,12 or E, t, m, L, |, (...)*n")
    plain = re.sub(r"\(([^()]*)\)\*(\d{1,4})", lambda m: m.group(1) * int(m.group(2)), plain)
    plain = re.sub(r"([EtmL|])\*(\d{1,4})", lambda m: m.group(1) * int(m.group(2)), plain)
    chunks = plain.split("|")
    if not re.fullmatch(r"[EtmL|]+", plain) or "E" not in chunks[0] or "L" not in chunks[-1] or plain.count("E") != 1:
        raise InputError(problem, field="pp_layout", value=text, allowed="the embedding E first and the loss L last")
    return tuple(chunk.count("t") for chunk in chunks), plain.count("m")

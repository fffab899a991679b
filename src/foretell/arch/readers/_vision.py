"""What image towers and multimodal models share: nested configurations, patches, wrapping a text model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Conv, Head, Operator
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, mha, pre_norm, single
from foretell.arch.readers._registry import find_reader


def nested(cfg: Config, *keys: str, model_type: str = "", force: bool = False) -> Config:
    """The nested configuration under the first of ``keys`` the file has, else the class default's.

    ``model_type`` is the type when the file names none; ``force`` makes it the type whatever the file says
    (older files carry the wrapper's name in ``vision_config``).
    """
    own: Mapping[str, Any] = next((cfg.defaults[k] for k in keys if isinstance(cfg.defaults.get(k), dict)), {})
    given: Any = None
    key = keys[0]
    for candidate in keys:
        cfg.read.add(candidate)
        if cfg.raw.get(candidate) is not None:
            given, key = cfg.raw[candidate], candidate
            break
    if given is None:
        given = dict(own)
    if not isinstance(given, Mapping):
        raise cfg.error(key, given, "an object", "give a nested configuration")
    declared = given.get("model_type")
    kind = model_type if force or not isinstance(declared, str) or not declared else declared
    kind = kind or str(own.get("model_type") or "")
    child = Config({**given, "model_type": kind}, where=cfg.where, prefix=f"{cfg.prefix}{key}.")
    if not child.defaults:
        child.defaults = dict(own)
    return child


def pair(cfg: Config, key: str, default: int | list[int] | None = None) -> tuple[int, int]:
    """A size given as one integer or as (height, width); 1 or more."""
    value = cfg.get(key) if default is None else cfg.get(key, default=default)
    if isinstance(value, list | tuple) and len(value) == 2:
        return cfg.check_int(f"{key}[0]", value[0], 1), cfg.check_int(f"{key}[1]", value[1], 1)
    side = cfg.check_int(key, value, 1)
    return side, side


def grid(cfg: Config, image: str = "image_size", patch: str = "patch_size") -> tuple[int, int]:
    """Patches per side of an image, rounded down as the strided convolution does."""
    (h, w), (ph, pw) = pair(cfg, image), pair(cfg, patch)
    if h < ph or w < pw:
        raise cfg.error(image, (h, w), f"at least the patch size {ph} x {pw}", "correct the sizes")
    return h // ph, w // pw


def patches(name: str, cfg: Config, *, channels: int, hidden: int, positions: int, bias: bool = True, frames: int = 0) -> Conv:
    """The strided convolution that cuts images (or ``frames``-frame clips) into patches."""
    kernel = pair(cfg, "patch_size")
    return Conv(
        name=name,
        c_in=channels,
        c_out=hidden,
        kernel=(frames, *kernel) if frames else kernel,
        bias=bias,
        positions=positions,
        source=positions * kernel[0] * kernel[1] * max(1, frames),
    )


def vit_layer(
    *,
    hidden: int,
    heads: int,
    ffn: int,
    fn: str = "gelu",
    bias: bool = True,
    packed: bool = False,
    rotary: int = 0,
    dropout: float = 0.0,
) -> list[Operator]:
    """The pre-norm layer of ViT, CLIP and SigLIP: attention and a two-matrix MLP, everything with biases."""

    def attend(x: str) -> list[Operator]:
        return mha(x, hidden=hidden, heads=heads, bias=bias, packed=packed, rotary=rotary, dropout=dropout)

    def feed(x: str) -> list[Operator]:
        return ffn2(x, hidden=hidden, ffn=ffn, fn=fn, bias=True)

    return pre_norm([(attend, 0.0), (feed, 0.0)], hidden=hidden)


def text_model(cfg: Config, *, tied: bool | None = None, head: bool = True) -> Architecture:
    """Read the nested text configuration ``cfg`` as an architecture of its own.

    ``tied`` overrides the output head's tying (a wrapper ties by its own flag); ``head=False`` drops the
    head.
    """
    read = find_reader(cfg.model_type)
    if read is None:
        raise cfg.error("model_type", cfg.model_type or None, "a known text model type", "correct the value")
    arch = read(cfg)
    ops: list[Operator] = []
    for op in arch.head.ops:
        if isinstance(op, Head):
            if not head:
                continue
            ops.append(op if tied is None else replace(op, tied=tied))
        else:
            ops.append(op)
    return replace(
        arch,
        head=replace(arch.head, ops=tuple(ops)),
        tied=arch.tied if tied is None else tied,
        config=dict(cfg.raw),
    )


def wrap(
    cfg: Config,
    text: Architecture,
    towers: Sequence[Stack],
    *,
    embed: Sequence[Operator] = (),
    notes: Sequence[str] = (),
) -> Architecture:
    """A multimodal model: ``towers`` run first, then ``text``; ``embed`` extends the input block."""
    return replace(
        text,
        name=cfg.model_type,
        model_type=cfg.model_type,
        family="multimodal",
        embed=replace(text.embed, ops=(*text.embed.ops, *embed)),
        stacks=(*towers, *text.stacks),
        text=text,
        notes=(*text.notes, *notes),
    )


def tower(name: str, ops: Sequence[Operator], n: int, *, width: int, positions: int, label: str = "layer") -> Stack:
    """A stack of ``n`` equal blocks over ``positions`` places of each sample."""
    block = Block(name=label, ops=tuple(ops), width=width, stream="sample", positions=positions)
    return Stack(name=name, blocks=(block,), pattern=(0,) * n)


@dataclass(frozen=True)
class Tower:
    """An image tower in parts: operators before the layers, of each kind of layer, and after them."""

    embed: tuple[Operator, ...]
    blocks: tuple[tuple[Operator, ...], ...]
    pattern: tuple[int, ...]
    tail: tuple[Operator, ...]
    hidden: int
    rows: int
    heads: int = 0
    ffn: int = 0

    def trunk(self, name: str = "vision") -> Stack:
        """The layers as a stack."""
        kinds = tuple(
            Block("layer" if len(self.blocks) == 1 else f"layer{i}", ops, self.hidden, "sample", self.rows)
            for i, ops in enumerate(self.blocks)
        )
        return Stack(name, kinds, self.pattern)

    def stacks(self) -> list[Stack]:
        """The tower as stacks of a larger model."""
        found = [
            tower("vision_embed", self.embed, 1, width=0, positions=self.rows, label="embed"),
            self.trunk(),
        ]
        if self.tail:
            found.append(tower("vision_tail", self.tail, 1, width=self.hidden, positions=self.rows, label="tail"))
        return found


def alone(cfg: Config, parts: Tower, head: Sequence[Operator], notes: Sequence[str] = ()) -> Architecture:
    """An image tower as a model of its own; ``head`` replaces the operators after its layers."""
    return single(
        cfg,
        family="vision",
        embed=parts.embed,
        stacks=[parts.trunk()],
        head=head,
        hidden=parts.hidden,
        embed_stream="sample",
        embed_positions=parts.rows,
        head_positions=parts.rows,
        heads=parts.heads,
        head_dim=parts.hidden // parts.heads,
        ffn=parts.ffn,
        notes=notes,
    )


TowerReader = Callable[[Config], Tower]
_TOWERS: dict[str, TowerReader] = {}


def tower_reader(*model_types: str) -> Callable[[TowerReader], TowerReader]:
    """Register a reader of image towers that multimodal models embed."""

    def register(function: TowerReader) -> TowerReader:
        for model_type in model_types:
            _TOWERS[model_type] = function
        return function

    return register


def read_tower(cfg: Config) -> Tower:
    """The image tower that ``cfg`` (a nested vision configuration) describes."""
    find_reader(cfg.model_type)
    read = _TOWERS.get(cfg.model_type)
    if read is None:
        raise cfg.error(
            "model_type",
            cfg.model_type or None,
            "an image tower that can be read here",
            "read the text part alone",
        )
    return read(cfg)


def text_only(cfg: Config) -> bool:
    """Whether ``architectures`` names the text-only class of a multimodal model type."""
    named = cfg.raw.get("architectures") or ()
    return bool(named) and isinstance(named, list | tuple) and str(named[0]).endswith("ForCausalLM")

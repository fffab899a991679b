"""Workloads: a model as a user holds it, by family, around one :class:`Architecture`.

A workload comes from :func:`foretell.load_model`, or from plain numbers:

>>> small = TransformerWorkload("small", layers=2, hidden_dim=64, heads=4, ffn_dim=256, vocab_size=1000)
>>> small.parameters  # 2 x (4 x 64^2 + 3 x 64 x 256 + 2 x 64) + 2 x 1000 x 64 + 64
259392
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

from foretell.arch._plain import decoder_of, positive
from foretell.arch._shapes import Shapes
from foretell.arch.architecture import Architecture
from foretell.arch.operators import Attention, Experts, Scan
from foretell.errors import InputError

__all__ = [
    "CNNWorkload",
    "DiffusionWorkload",
    "SSMWorkload",
    "SparseTransformerWorkload",
    "TransformerWorkload",
    "Workload",
    "wrap",
]

_SHAPE = ("layers", "hidden_dim", "heads", "kv_heads", "head_dim", "ffn_dim", "vocab_size", "context_length")


@dataclass(frozen=True, eq=False, init=False)
class Workload(Shapes):
    """A model.  Workloads are equal when they are the same object; `load_model` gives the same one again."""

    name: str
    id: str
    """Catalog id, or empty."""
    stated_parameters: int | None
    """The count that a catalog entry or the user stated; `parameters` is the one that the shapes give."""
    notes: tuple[str, ...]
    sources: Any = field(repr=False)
    _built: Architecture | None = field(repr=False)

    def __init__(
        self,
        name: str,
        architecture: Architecture | None = None,
        *,
        parameters: float | None = None,
        id: str = "",  # noqa: A002  # the catalog's word
        notes: tuple[str, ...] = (),
        sources: object = (),
    ) -> None:
        """Keep an architecture, or a count alone."""
        stated = None if parameters is None else positive(parameters, "parameters")
        if architecture is None and stated is None:
            raise InputError("needs an architecture or a number of parameters", field="workload", value=name)
        self._keep(name, architecture, stated, id, notes, sources)

    def _keep(
        self,
        name: str,
        architecture: Architecture | None,
        stated: int | None = None,
        identity: str = "",
        notes: tuple[str, ...] = (),
        sources: object = (),
    ) -> None:
        if architecture is not None and not isinstance(architecture, Architecture):
            raise InputError("must be an Architecture", field="architecture", value=architecture)
        if not isinstance(name, str):
            raise InputError("must be a name", field="name", value=name)
        for key, value in (
            ("name", name),
            ("id", identity),
            ("stated_parameters", stated),
            ("notes", notes + (architecture.notes if architecture is not None else ())),
            ("sources", sources),
            ("_built", architecture),
        ):
            object.__setattr__(self, key, value)

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        *,
        name: str = "",
        id: str = "",  # noqa: A002
        stated: int | None = None,
        sources: object = (),
    ) -> Self:
        """Wrap an architecture as this kind of workload."""
        made = cls.__new__(cls)
        made._keep(name or architecture.name, architecture, stated, id, (), sources)  # noqa: SLF001  # our own
        return made

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def architecture(self) -> Architecture:
        """The operators; an InputError where only counts were given."""
        if self._built is None:
            raise InputError(
                "is known by its counts only; this question needs its layers",
                field="model",
                value=self.name,
                hint="Give a config.json, a catalog name, or the shapes",
            )
        return self._built

    @property
    def has_shapes(self) -> bool:
        """Whether the operators are known (False: only counts were given)."""
        return self._built is not None

    @property
    def parameters(self) -> int:
        """Parameters of the module; those of the shapes where they are known."""
        return self._built.parameters if self._built is not None else int(self.stated_parameters or 0)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token visits."""
        return self._built.active_parameters if self._built is not None else self.parameters

    @cached_property
    def text(self) -> Workload | None:
        """The language part of a multimodal model; None where there is no such part."""
        inner = self.architecture.text
        return None if inner is None else wrap(inner, name=f"{self.name} (text)", sources=self.sources)


@dataclass(frozen=True, eq=False, init=False)
class TransformerWorkload(Workload):
    """A dense transformer; from plain numbers it has RMSNorm, rotary positions and no biases."""

    def __init__(
        self,
        name: str,
        parameters: float | None = None,
        layers: int | None = None,
        hidden_dim: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        ffn_dim: int | None = None,
        vocab_size: int | None = None,
        *,
        tied_embeddings: bool = False,
        gated_mlp: bool = True,
        context_length: int | None = None,
        architecture: Architecture | None = None,
    ) -> None:
        """Build it; without `ffn_dim` that width is chosen so that the count matches `parameters`."""
        stated = None if parameters is None else positive(parameters, "parameters")
        notes: tuple[str, ...] = ()
        shape = (layers, hidden_dim, heads, kv_heads, head_dim, ffn_dim, vocab_size, context_length)
        if architecture is None and (layers is not None or hidden_dim is not None):
            architecture, notes = decoder_of(
                name,
                stated,
                dict(zip(_SHAPE, shape, strict=True)),
                tied=tied_embeddings,
                gated=gated_mlp,
            )
        if architecture is None and stated is None:
            raise InputError("needs layers, hidden_dim and heads, or parameters", field="workload", value=name)
        self._keep(name, architecture, stated, notes=notes)


@dataclass(frozen=True, eq=False, init=False)
class SparseTransformerWorkload(Workload):
    """A transformer with routed experts."""

    def __init__(
        self,
        name: str,
        parameters: float | None = None,
        layers: int | None = None,
        hidden_dim: int | None = None,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        ffn_dim: int | None = None,
        vocab_size: int | None = None,
        *,
        experts: int | None = None,
        experts_per_token: int = 1,
        expert_ffn_dim: int | None = None,
        shared_experts: int = 0,
        dense_layers: int = 0,
        active_parameters: float | None = None,
        tied_embeddings: bool = False,
        gated_mlp: bool = True,
        context_length: int | None = None,
        architecture: Architecture | None = None,
    ) -> None:
        """Build it; without `expert_ffn_dim` that width is chosen so that the count matches `parameters`."""
        stated = None if parameters is None else positive(parameters, "parameters")
        notes: tuple[str, ...] = ()
        shape = (layers, hidden_dim, heads, kv_heads, head_dim, ffn_dim, vocab_size, context_length)
        if architecture is None:
            architecture, notes = decoder_of(
                name,
                stated,
                dict(zip(_SHAPE, shape, strict=True))
                | {
                    "experts": positive(experts, "experts"),
                    "experts_per_token": positive(experts_per_token, "experts_per_token"),
                    "expert_ffn_dim": expert_ffn_dim,
                    "shared_experts": shared_experts,
                    "dense_layers": dense_layers,
                },
                tied=tied_embeddings,
                gated=gated_mlp,
            )
        self._keep(name, architecture, stated, notes=notes)
        if active_parameters is not None:
            given, counted = positive(active_parameters, "active_parameters"), architecture.active_parameters
            if abs(counted / given - 1) > 0.02:
                more = f"stated {given:,} active parameters; the shapes give {counted:,}"
                object.__setattr__(self, "notes", (*self.notes, more))


@dataclass(frozen=True, eq=False, init=False)
class _Counted(Workload):
    """A model that plain numbers describe by its counts only."""

    layer_count: int | None = None
    inference_flops: float | None = None
    """Of one sample, FLOP (a multiply-add is two)."""

    def __init__(
        self,
        name: str,
        parameters: float,
        layers: int | None = None,
        inference_flops: float | None = None,
        **details: object,
    ) -> None:
        """Keep the counts; further details (denoising_steps, state_size ...) become attributes."""
        self._keep(name, None, positive(parameters, "parameters"))
        object.__setattr__(self, "layer_count", layers)
        object.__setattr__(self, "inference_flops", inference_flops)
        for key, value in details.items():
            if key not in self._details:
                allowed = ["layers", "inference_flops", *self._details]
                raise InputError("is not a known detail", field=key, value=value, allowed=allowed)
            object.__setattr__(self, key, value)

    _details: ClassVar[tuple[str, ...]] = ()

    @property
    def layers(self) -> int:
        """Layers, as stated or as built."""
        if self._built is None and self.layer_count is not None:
            return self.layer_count
        return self.architecture.layers


@dataclass(frozen=True, eq=False, init=False)
class CNNWorkload(_Counted):
    """A convolutional network."""

    _details: ClassVar[tuple[str, ...]] = ("width_multiplier",)


@dataclass(frozen=True, eq=False, init=False)
class DiffusionWorkload(_Counted):
    """A diffusion model (U-Net or transformer)."""

    _details: ClassVar[tuple[str, ...]] = ("denoising_steps", "resolution", "hidden_dim")


@dataclass(frozen=True, eq=False, init=False)
class SSMWorkload(_Counted):
    """A state-space model without attention."""

    _details: ClassVar[tuple[str, ...]] = ("state_size", "hidden_dim", "vocab_size")


def wrap(
    architecture: Architecture,
    *,
    name: str = "",
    id: str = "",  # noqa: A002
    stated: int | None = None,
    sources: object = (),
) -> Workload:
    """Return the workload of the class that an architecture belongs to."""
    kinds = {type(op) for block, _ in architecture.blocks() for op in block.ops}
    cls: type[Workload] = TransformerWorkload
    if architecture.family == "cnn":
        cls = CNNWorkload
    elif architecture.family == "diffusion":
        cls = DiffusionWorkload
    elif Scan in kinds and Attention not in kinds:
        cls = SSMWorkload
    elif Experts in kinds:
        cls = SparseTransformerWorkload
    return cls.of(architecture, name=name, id=id, stated=stated, sources=sources)

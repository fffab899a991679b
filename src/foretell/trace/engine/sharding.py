"""One rank of many: a process group in which nobody else is there, and what sharding the model over it does to memory.

``fully_shard`` (FSDP2) is torch's own code and runs as it is.  ``DistributedDataParallel`` reads gradients in C++, which fake
tensors do not allow: :class:`DataParallel` stands for it with the same buckets (``torch/csrc/distributed/c10d/reducer.cpp``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.utils._python_dispatch import _disable_current_modes

from foretell.errors import InputError
from foretell.trace.engine.layers import before_sharding
from foretell.trace.job import Job
from foretell.trace.request import SHARDINGS

__all__ = ["DataParallel", "join", "shard", "stand_ins"]

_FIRST_BUCKET = 2**20
_BUCKET_MB = 25


_init = distributed.init_process_group


def join(world: int) -> None:
    """Make this process rank 0 of ``world`` ranks of which no other exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  # registers the backend

    if distributed.is_initialized():
        distributed.destroy_process_group()
    _init("fake", store=FakeStore(), rank=0, world_size=world)


@contextlib.contextmanager
def stand_ins(world: int) -> Iterator[None]:
    """Let code that joins its ranks and wraps its model do so: the group is the one that nobody else is in."""

    def init(*_args: Any, **_kwargs: Any) -> None:
        if not distributed.is_initialized():
            join(world)

    with contextlib.ExitStack() as stack:
        for owner in (distributed, distributed.distributed_c10d):
            stack.enter_context(mock.patch.object(owner, "init_process_group", init))
        for owner in (nn.parallel, nn.parallel.distributed):
            stack.enter_context(mock.patch.object(owner, "DistributedDataParallel", DataParallel))
        for owner in (nn, nn.parallel):
            stack.enter_context(mock.patch.object(owner, "DataParallel", OneDevice))
        if world > 1:
            stack.enter_context(real_meshes())
        yield


@contextlib.contextmanager
def real_meshes() -> Iterator[None]:
    """Let device meshes keep real tensors of ranks (they read them to make process groups), and spread tensors no tensors at all
    of the whole size."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: PLC0415  # 0.6 s

    kind = device_mesh.DeviceMesh

    def real(name: str) -> Any:
        original = getattr(kind, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily():
                ranks = kwargs.get("_rank_map")
                if isinstance(ranks, FakeTensor):  # from init_device_mesh: every rank in order
                    kwargs["_rank_map"] = torch.arange(ranks.numel(), dtype=torch.int, device="cpu")
                return original(self, *args, **kwargs)

        return mock.patch.object(kind, name, method)

    def apart(name: str) -> Any:
        """Shapes of spread tensors are found out on tensors of the whole size, which nobody has."""
        original = getattr(ShardingPropagator, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return original(*args, **kwargs)

        return mock.patch.object(ShardingPropagator, name, method)

    with contextlib.ExitStack() as stack:
        for name in ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached"):
            if hasattr(ShardingPropagator, name):
                stack.enter_context(apart(name))
        for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "_create_sub_mesh", "_create_flatten_mesh"):
            if hasattr(kind, name):
                stack.enter_context(real(name))
        yield


def shard(job: Job, kind: str, world: int, *, blocks: list[nn.ModuleList], mixed: str | None) -> None:
    """Shard a job's model in place, its optimizer with it; ``mixed``: dtype of the gathered weights.

    ``blocks``: the lists of layers; each layer is a unit of its own, the rest is the root's.

    Raises:
        InputError: no such sharding.

    """
    if kind not in SHARDINGS:
        raise InputError("is no sharding that a trace knows", field="sharding", value=kind, allowed=list(SHARDINGS))
    if kind in ("fsdp2", "zero2", "zero3"):
        before_sharding(job.model)
        _fully(job, world, blocks, mixed, reshard=kind != "zero2")
    elif kind in ("ddp", "zero1"):
        job.model = DataParallel(job.model)
        if kind == "zero1":
            whole = job.optimizer
            job.optimizer = None if whole is None else lambda parameters: whole(_share(parameters, world))


def _fully(job: Job, world: int, blocks: list[nn.ModuleList], mixed: str | None, *, reshard: bool) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415  # 0.5 s

    mesh = device_mesh.init_device_mesh("cuda", (world,))
    policy = MixedPrecisionPolicy(getattr(torch, mixed), torch.float32) if mixed else MixedPrecisionPolicy()
    for block in blocks:
        for layer in block:
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(job.model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    job.autocast = None  # the gathered weights have the compute dtype


def _share(parameters: list[Any], world: int) -> list[Any]:
    """Return the parameters whose states this rank keeps: the largest first, each to the rank that has least.

    (pytorch ``torch/distributed/optim/zero_redundancy_optimizer.py``; the fullest rank is taken.)
    """
    ranks: list[list[Any]] = [[] for _ in range(world)]
    sizes = [0] * world
    for parameter in sorted(parameters, key=lambda p: p.numel(), reverse=True):
        least = sizes.index(min(sizes))
        ranks[least].append(parameter)
        sizes[least] += parameter.numel()
    kept = {id(p) for p in ranks[sizes.index(max(sizes))]}
    return [p for p in parameters if id(p) in kept]


class OneDevice(nn.Module):
    """Stands for ``nn.DataParallel`` where there is one GPU: it calls the module."""

    def __init__(self, module: nn.Module, *_args: Any, **_kwargs: Any) -> None:
        """Take what the real one takes."""
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self.module(*args, **kwargs)


class DataParallel(nn.Module):
    """Stands for ``DistributedDataParallel``: a copy of every gradient in buckets that are reduced over the ranks.

    One bucket for each dtype until the first backward pass has shown the order in which gradients come; then buckets of
    1 MiB and, after the first, of ``bucket_cap_mb``.  With ``gradient_as_bucket_view`` a gradient is a part of its bucket.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,  # noqa: ARG002  # as the real one
        *_args: Any,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
        **_kwargs: Any,
    ) -> None:
        """Take what the real one takes; what decides no memory has no effect."""
        super().__init__()
        self.module = module
        self.as_view = gradient_as_bucket_view
        self.cap = int((bucket_cap_mb or _BUCKET_MB) * 2**20)
        self.order: list[Any] = []
        self.rebuilt = False
        self.syncing = True
        self.buckets: list[torch.Tensor] = []
        self.views: dict[int, torch.Tensor] = {}
        trained = [p for p in module.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._ready)
        self._build(trained[::-1], sys.maxsize, sys.maxsize)

    def _build(self, parameters: list[Any], first: int, cap: int) -> None:
        """Make the buckets, parameters in the order in which their gradients come."""
        self.buckets, self.views = [], {}
        filling: dict[torch.dtype, list[Any]] = {}
        size: dict[torch.dtype, int] = {}
        made: set[torch.dtype] = set()

        def close(dtype: torch.dtype) -> None:
            inside = filling.pop(dtype)
            bucket = torch.empty(sum(p.numel() for p in inside), dtype=dtype, device=inside[0].device)
            self.buckets.append(bucket)
            at = 0
            for p in inside:
                self.views[id(p)] = bucket[at : at + p.numel()].view(p.shape)
                at += p.numel()
            made.add(dtype)

        for p in parameters:
            filling.setdefault(p.dtype, []).append(p)
            size[p.dtype] = size.get(p.dtype, 0) + p.numel() * p.element_size()
            if size[p.dtype] >= (cap if p.dtype in made else first):
                close(p.dtype)
                size[p.dtype] = 0
        for dtype in list(filling):
            close(dtype)

    def _ready(self, parameter: Any) -> None:
        """A gradient has come: it goes into its bucket."""
        if not self.rebuilt:
            self.order.append(parameter)
        if not self.syncing:
            return
        view = self.views[id(parameter)]
        if parameter.grad is not None and parameter.grad.untyped_storage()._cdata != view.untyped_storage()._cdata:
            view.copy_(parameter.grad)
            if self.as_view:
                parameter.grad = view

    def no_sync(self) -> Any:
        """Return a context in which gradients are kept and not reduced."""

        @contextlib.contextmanager
        def quiet() -> Any:
            self.syncing = False
            try:
                yield
            finally:
                self.syncing = True

        return quiet()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; at the second pass the buckets are made anew in the order that the first one showed."""
        if self.order and not self.rebuilt and self.syncing:
            self.rebuilt = True
            self.buckets, self.views = [], {}
            self._build(list(dict.fromkeys(self.order)), _FIRST_BUCKET, self.cap)
            self.order = []
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Give the module's own attributes too, for code that asks for its configuration."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

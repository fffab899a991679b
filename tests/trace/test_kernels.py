"""Strides and bytes that fake kernels are corrected to, against real tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

SIZES = st.sampled_from([1, 1, 2, 3, 4, 6])


@given(shape=st.lists(SIZES, min_size=1, max_size=4), data=st.data())
def test_strides_of_views_are_torchs_own(shape: list[int], data: st.DataObject) -> None:
    from foretell.trace.engine.kernels import view_stride

    tensor = torch.empty(shape).permute(data.draw(st.permutations(range(len(shape)))))
    factors = [n for n in tensor.shape if n > 1]
    wanted: list[int] = []
    while factors:
        take = data.draw(st.integers(1, len(factors)))
        wanted += [1] * data.draw(st.integers(0, 2)) + [int(torch.tensor(factors[:take]).prod())]
        factors = factors[take:]
    wanted = wanted or [1]
    try:
        real = tensor.view(wanted).stride()
    except RuntimeError:
        real = None
    assert view_stride(tuple(tensor.shape), tensor.stride(), tuple(wanted)) == real


@given(shape=st.lists(SIZES, min_size=1, max_size=4), data=st.data())
def test_dense_is_torchs_own(shape: list[int], data: st.DataObject) -> None:
    from foretell.trace.engine.kernels import dense

    whole = torch.empty(shape).permute(data.draw(st.permutations(range(len(shape)))))
    for tensor in (whole, whole[..., :1], whole[..., ::2], whole.unsqueeze(0).expand(3, *whole.shape)):
        assert dense(tensor) == torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _losses(**options: Any) -> dict[str, Callable[[Any, Any], Any]]:
    functional = torch.nn.functional
    return {
        "mse": lambda x, y: functional.mse_loss(x, y, **options),
        "smooth l1": lambda x, y: functional.smooth_l1_loss(x, y, **options),
        "soft margin": lambda x, y: functional.soft_margin_loss(x, y, **options),
        "bce": lambda x, y: functional.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **options),
        "huber": lambda x, y: functional.huber_loss(x, y, **options),
    }


def _layer_norm(x: Any, _: Any) -> Any:
    weight = torch.ones(4)
    return torch.native_layer_norm(x.bfloat16(), (4,), weight, weight, 1e-5)


def _group_norm(x: Any, _: Any) -> Any:
    weight = torch.ones(4)
    return torch.native_group_norm(x.bfloat16(), weight, weight, 3, 4, 4, 2, 1e-5)


def _batch_norm(x: Any, _: Any) -> Any:
    weight = torch.ones(4)
    return torch.native_batch_norm(x.bfloat16(), weight, weight, weight.clone(), weight.clone(), True, 0.1, 1e-5)


def _batch_of_one(x: Any, _: Any) -> Any:
    return x[:1].transpose(1, 2).reshape(1, 4, 2, 2) * 2


def _layer_norm_backward(x: Any, _: Any) -> Any:
    x = x.detach().requires_grad_()
    out = torch.nn.functional.layer_norm(x, (4,))
    return torch.autograd.grad(out, x, torch.ones_like(out).transpose(1, 2))


def _log_softmax_backward(x: Any, _: Any) -> Any:
    return torch.ops.aten._log_softmax_backward_data(x.transpose(0, 2), x.transpose(0, 2), 0, torch.float32)


LAYOUTS = (_layer_norm, _group_norm, _batch_norm, _batch_of_one, _layer_norm_backward, _log_softmax_backward)


def _layout(out: Any) -> list[tuple[Any, ...]]:
    outs = out if isinstance(out, tuple) else (out,)
    return [(tuple(t.shape), t.stride(), t.dtype, t.untyped_storage().nbytes()) for t in outs]


@pytest.mark.parametrize("name", _losses())
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_keep_the_memory_of_the_real_ones(name: str, reduction: str) -> None:
    function = _losses(reduction=reduction)[name]
    real = _layout(function(torch.rand(3, 4), torch.rand(3, 4)))
    assert _fake(function, (3, 4), (3, 4)) == real


@pytest.mark.parametrize("function", LAYOUTS)
def test_results_are_laid_out_as_the_real_ones(function: Callable[[Any, Any], Any]) -> None:
    assert _fake(function, (3, 4, 4), (1,)) == _layout(function(torch.rand(3, 4, 4), None))


def _fake(function: Callable[[Any, Any], Any], *shapes: tuple[int, ...]) -> list[tuple[Any, ...]]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from foretell.trace.engine.answers import Building
    from foretell.trace.engine.policies import Policies

    with FakeTensorMode(), Building(Policies()):
        return _layout(function(*(torch.rand(shape) for shape in shapes)))

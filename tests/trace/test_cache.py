"""Keys of the cache of fake operators: they tell apart what torch's own tell apart, and lead to the outputs torch would make."""

from __future__ import annotations

import contextlib
import importlib.util
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")


def _jobs() -> Any:
    spec = importlib.util.spec_from_file_location(f"{__name__}_models", Path(__file__).with_name("models.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.JOBS


def calls() -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls that differ from each other in one thing, and some that do not."""
    aten, x = torch.ops.aten, torch.empty(4, 4)
    others = [
        torch.empty(4, 4), x.t(), x[1:], torch.empty(5, 4)[1:], torch.empty(64)[:16].view(4, 4),
        torch.empty(4, 4, dtype=torch.half), torch.empty(4, 4, device="cuda"), torch.empty(4, 4, requires_grad=True),
        torch.nn.Parameter(torch.empty(4, 4)), torch.empty(4, 4, dtype=torch.cfloat),
        torch.empty(4, 4, dtype=torch.cfloat).conj(),
    ]  # fmt: skip
    out: list[Any] = [(aten.neg.default, (t,), {}) for t in (x, *others)]
    out += [(aten.add.Tensor, (x, one), {}) for one in (1, 1.0, True, 2, x, others[0], others[1])]
    out += [(aten.add.Tensor, (x, 1), {"alpha": alpha}) for alpha in (1, 2, 1.0)]
    out += [(aten.sum.dim_IntList, (x, dims), {}) for dims in ([0], [1], [0, 1], (0,), [])]
    out += [(aten.sum.dim_IntList, (x, [0]), {"dtype": dtype}) for dtype in (torch.float, torch.half, None)]
    out += [(aten.cat.default, (parts,), {}) for parts in ([x, x], [x, others[0]], [x, others[1]], [x], [x, x, x])]
    out += [(aten.empty.memory_format, ([2, 2],), {"device": torch.device(d)}) for d in ("cpu", "cuda")]
    out += [(aten.index.Tensor, (x, [None, i]), {}) for i in (None, torch.empty(2, dtype=torch.long))]
    return out


def test_keys_are_equal_where_torchs_are() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode, _CacheKeyState  # type: ignore[attr-defined]

    from foretell.trace.engine.cache import quicken_keys

    plain = FakeTensorMode._cache_key
    with contextlib.ExitStack() as stack, FakeTensorMode() as mode:
        quicken_keys(stack)
        assert FakeTensorMode._cache_key is not plain
        asked = calls()
        quick = [mode._cache_key(_CacheKeyState(None), *call) for call in asked]
        own = [plain(mode, _CacheKeyState(None), *call) for call in asked]
    assert all(a != b for a in quick for b in own)  # none made here is taken for one of torch's
    for i, j in combinations_with_replacement(range(len(asked)), 2):
        assert (quick[i] == quick[j]) == (own[i] == own[j]), (asked[i], asked[j])
        assert quick[i] != quick[j] or hash(quick[i]) == hash(quick[j])
    assert FakeTensorMode._cache_key is plain


@pytest.mark.parametrize("kind", ["function", "another mode's", "sparse"])
def test_arguments_that_are_not_known_get_torchs_key(kind: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache, _CacheKeyState  # type: ignore[attr-defined]

    from foretell.trace.engine.cache import quicken_keys

    with contextlib.ExitStack() as stack:
        quicken_keys(stack)
        mode, other = FakeTensorMode(), FakeTensorMode()
        with other if kind == "another mode's" else mode:
            x = torch.empty(4, 4).to_sparse() if kind == "sparse" else torch.empty(4, 4)
        args = (x, calls) if kind == "function" else (x,)
        with pytest.raises(_BypassDispatchCache):
            mode._cache_key(_CacheKeyState(None), torch.ops.aten.neg.default, args, {})


@pytest.mark.parametrize(
    "name", ["torch encoder, autocast, fused AdamW", "checkpoint, re-entrant", "Llama, checkpoint", "ConvNext"]
)
def test_outputs_from_the_cache_are_those_of_the_operators(name: str) -> None:
    """Torch itself compares each output made of an entry with what the operator gives."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from foretell.trace.engine.session import Settings, Traced, machine

    pytest.importorskip("transformers")
    with torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True):
        hits = FakeTensorMode.cache_hits
        with Traced(_jobs()[name], machine(Settings(device="cpu"))) as traced:
            traced.record()
        assert FakeTensorMode.cache_hits > hits + 100

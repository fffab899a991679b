"""What a trace says where values decide: operators whose output's size depends on data, missing fake kernels, loops over data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from foretell.trace.events import Recording
from foretell.trace.job import Job

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS, WIDTH = 16, 8
Function = Callable[[Any], Any]


def job(function: Function) -> Callable[[], Job]:
    """A step of a linear layer, called ``inner``, in a module that computes something of its output."""

    class Outer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(WIDTH, WIDTH)
            with torch.no_grad():  # numbers that are finite, and that a trace does not know
                self.inner.weight.normal_()
                self.inner.bias.normal_()

        def forward(self, x: Any) -> Any:
            return function(self.inner(x)).float().sum()

    def batch() -> Any:
        return torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH)

    return lambda: Job(Outer(), batch, None, lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def trace(function: Function, *, fake: bool = True, **settings: Any) -> Recording:
    from foretell.trace.engine.session import Settings, Traced, machine

    with Traced(job(function), machine(Settings(device="cpu", fake=fake, **settings))) as traced:
        return traced.record()


def stream(recording: Recording) -> list[tuple[bool, str, int]]:
    return [(allocates, storage.op, storage.bytes) for allocates, _, storage in recording.events()]


def policies(function: Function, **settings: Any) -> dict[str, int]:
    found: dict[str, int] = trace(function, **settings).about["policies"]
    return found


# -- refused by name ------------------------------------------------------------------------------------------

UNANSWERABLE: dict[str, tuple[str, Function]] = {
    "nonzero": ("aten::nonzero", lambda x: x * (x > 0).nonzero().sum()),
    "where with one argument": ("aten::nonzero", lambda x: x[torch.where(x > 0)]),
    "argwhere": ("aten::nonzero", lambda x: x * torch.argwhere(x > 0).sum()),
    "masked_select": ("aten::masked_select", lambda x: x.masked_select(x > 0)),
    "boolean index": ("aten::index", lambda x: x[x > 0]),
    "boolean index of rows": ("aten::index", lambda x: x[x[:, 0] > 0]),
    "unique": ("aten::_unique2", lambda x: x * torch.unique(x.detach()).sum()),
    "unique rows": ("aten::unique_dim", lambda x: x * torch.unique(x.detach(), dim=0).sum()),
    "unique_consecutive": ("aten::unique_consecutive", lambda x: x * torch.unique_consecutive(x.detach()).sum()),
    "repeat_interleave": ("aten::repeat_interleave", lambda x: x.repeat_interleave((x[:, 0] > 0).long(), dim=0)),
    "bincount": ("aten::bincount", lambda x: x * torch.bincount((x[:, 0] > 0).long()).sum()),
    "lstsq": ("aten::linalg_lstsq", lambda x: torch.linalg.lstsq(x, x)[0]),
    "numpy": ("numpy()", lambda x: x * float(x.detach().numpy().sum())),
}


@pytest.mark.parametrize("name", UNANSWERABLE)
def test_refusal_names_operator_and_module(name: str) -> None:
    from foretell.trace.engine.policies import Unanswerable

    op, function = UNANSWERABLE[name]
    with pytest.raises(Unanswerable) as refused:
        trace(function)
    assert refused.value.op == op
    assert refused.value.module == "Outer"
    assert op in str(refused.value)
    assert "Outer" in str(refused.value)


def test_refusal_in_backward_names_the_module_of_its_forward() -> None:
    from foretell.trace.engine.policies import Unanswerable

    class Picks(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004  # torch's
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:  # noqa: ARG004  # torch's
            return grad * grad[grad > 0].sum()

    with pytest.raises(Unanswerable) as refused:
        trace(lambda x: Picks.apply(x) * x)
    assert refused.value.op == "aten::index"
    assert refused.value.module == "Outer"


# -- answered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["nonzero", "where with one argument", "masked_select", "boolean index", "boolean index of rows"]
)
def test_density_answers_masks(name: str) -> None:
    op, function = UNANSWERABLE[name]
    assert policies(function, density=0.5) == {f"{op}: 0.5 of the mask": 2}


def test_density_gives_the_rows() -> None:
    recording = trace(lambda x: x[x[:, 0] > 0], density=0.25)
    made = [s.bytes for s in recording.storages if s.op == "aten::index"]
    assert made == [4 * ROWS // 4 * WIDTH] * 2


def _countdown(x: Any) -> Any:
    left = torch.tensor(5.0)
    view = left.view(1)
    while left.item() > 0:
        view -= 1
        x = x * 2
    return x


KNOWN: dict[str, Function] = {
    "mask from numbers": lambda x: x[torch.arange(ROWS) % 2 == 0],
    "numbers under a mask": lambda x: x * torch.arange(ROWS)[torch.arange(ROWS) > 11].sum().item(),
    "part under a mask of numbers": lambda x: x.masked_select(torch.arange(WIDTH) > 2),
    "nonzero of numbers": lambda x: x[(torch.arange(ROWS) > 3).nonzero().squeeze(1)],
    "repeats from numbers": lambda x: x.repeat_interleave(torch.arange(ROWS), dim=0),
    "unique numbers": lambda x: x[torch.unique(torch.arange(ROWS) // 3)],
    "loop on a counter": _countdown,
    "rates": lambda x: x * sum(r.item() for r in torch.linspace(0, 0.5, 3)),
    "list": lambda x: torch.cat(x.split(torch.tensor([3, 13]).tolist())),
    "numpy": lambda x: x * float(torch.arange(3).numpy().sum()),
    "number divided by number": lambda x: x.view(torch.div(ROWS, 4, rounding_mode="trunc"), -1),
    "ctc": lambda x: torch.nn.functional.ctc_loss(
        x.view(8, 2, 8).log_softmax(2), torch.ones(2, 3, dtype=torch.long), torch.full((2,), 8), torch.full((2,), 2)
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_values_that_follow_from_numbers_are_known(name: str) -> None:
    recording = trace(KNOWN[name])
    assert recording.about["policies"] == {}
    assert stream(recording) == stream(trace(KNOWN[name], fake=False))


def test_a_value_is_forgotten_when_something_unknown_is_written_over_it() -> None:
    def function(x: Any) -> Any:
        kept = torch.zeros(3)
        kept[1:] += x.detach()[0, 0]
        return x * kept[1].item()

    assert policies(function) == {"value of aten::select": 2}


def test_values_of_a_copied_module_are_its_own() -> None:
    import copy

    def function(x: Any) -> Any:
        module = torch.nn.Module()
        module.register_buffer("count", torch.tensor([2.0]))
        other = copy.deepcopy(module)
        module.count += 1
        return x.view(int(other.count.item()), int(module.count.item()) + 5, -1)

    assert trace(function).about["policies"] == {}


@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (lambda x: x if torch.allclose(x, x * 1) else x[:2], "aten::allclose: yes"),
        (lambda x: x if torch.equal(x, x * 1) else x[:2], "aten::equal: yes"),
        (lambda x: x * x.sum().item(), "value of aten::sum"),
        (lambda x: x if x.isfinite().all() else x[:1], "value of aten::all"),
        (lambda x: x[:1] if (x == 7).any() else x, "value of aten::any"),
        (lambda x: x[: len(f"{x.sum() * 0:.2f}")], "value of aten::mul"),
        (lambda x: x * torch.bincount((x[:, 0] > 0).long(), minlength=8).sum(), "aten::bincount: no value beyond minlength"),
    ],
)
def test_ordinary_answers_are_counted(function: Function, asked: str) -> None:
    recording = trace(function)
    assert recording.about["policies"] == {asked: 2}
    assert stream(recording) == stream(trace(function, fake=False))


def test_answers_while_the_job_is_built_are_counted() -> None:
    from foretell.trace.engine.session import Settings, Traced, machine

    def make() -> Job:
        assert torch.randn(3).sum().item() == 1.0
        return job(lambda x: x)()

    with Traced(make, machine(Settings(device="cpu"))) as traced:
        assert traced.record().about["policies"] == {"value of aten::sum": 1}


def test_one_hot_takes_the_way_of_real_tensors() -> None:
    def function(x: Any) -> Any:
        return x * torch.nn.functional.one_hot(torch.arange(ROWS) % WIDTH, WIDTH)

    assert stream(trace(function)) == stream(trace(function, fake=False))


def test_functions_that_are_replaced_can_be_scripted() -> None:
    def make() -> Job:
        @torch.jit.script  # type: ignore[untyped-decorator]
        def scripted(x: torch.Tensor, classes: int) -> torch.Tensor:
            hot = torch.nn.functional.one_hot(x, num_classes=classes).float()
            return torch.nn.functional.linear(hot, torch.ones(classes, classes))

        return job(lambda x: x * scripted(torch.arange(ROWS) % WIDTH, WIDTH))()

    from foretell.trace.engine.session import Settings, Traced, machine

    with Traced(make, machine(Settings(device="cpu"))) as traced:
        hot = [s for s in traced.record().storages if s.bytes == 8 * ROWS * WIDTH]
    assert hot, "the classes of every row, as integers"


# -- operators without a fake kernel --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def custom() -> Iterator[Any]:
    """A library of somebody's own operators, none of which knows fake tensors."""
    library = torch.library.Library("foretell_tests", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.define("split(Tensor x) -> (Tensor, Tensor)")
    library.impl("double", lambda x: x * 2, "CPU")
    library.impl("split", lambda x: (x * 2, x * 3), "CPU")
    yield torch.ops.foretell_tests
    library._destroy()


@pytest.mark.parametrize(("name", "count"), [("double", 1), ("split", 2)])
def test_an_operator_without_a_fake_kernel_is_taken_to_keep_the_shape(custom: Any, name: str, count: int) -> None:
    def function(x: Any) -> Any:
        made = getattr(custom, name)(x.detach())
        return x + (made if count == 1 else made[1])

    recording = trace(function)
    label = f"foretell_tests::{name}: without a fake kernel, its outputs taken to be like its first tensor"
    assert recording.about["policies"] == {label: 2}
    made = [s.bytes for s in recording.storages if s.op == f"foretell_tests::{name}"]
    assert made == [4 * ROWS * WIDTH] * 2 * count
    assert stream(recording) == stream(trace(function, fake=False))


def test_an_operator_of_custom_op_is_taken_so_too() -> None:
    @torch.library.custom_op("foretell_tests_new::triple", mutates_args=())  # type: ignore[untyped-decorator]
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    triple.register_autograd(lambda _ctx, grad: grad * 3)
    recording = trace(triple)
    assert list(recording.about["policies"]) == [
        "foretell_tests_new::triple: without a fake kernel, its outputs taken to be like its first tensor"
    ]
    assert stream(recording) == stream(trace(triple, fake=False))


def test_an_operator_that_takes_no_tensor_is_refused_by_name() -> None:
    from foretell.trace.engine.answers import NoFakeKernel

    library = torch.library.Library("foretell_tests_odd", "DEF")
    library.define("make(int n) -> Tensor")
    library.impl("make", torch.zeros, "CPU")
    library.define("many(Tensor x) -> Tensor[]")
    library.impl("many", lambda x: [x * 2], "CPU")
    for name, function in (
        ("many", lambda x: x + torch.ops.foretell_tests_odd.many(x.detach())[0]),
        ("make", lambda x: x + torch.ops.foretell_tests_odd.make(WIDTH)),
    ):
        with pytest.raises(NoFakeKernel, match=f"foretell_tests_odd::{name} in module Outer") as refused:
            trace(function)
        assert (refused.value.op, refused.value.module) == (f"foretell_tests_odd::{name}", "Outer")
    library._destroy()


# -- loops that do not end ------------------------------------------------------------------------------------


def test_a_loop_that_waits_for_data_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from foretell.trace.engine import session
    from foretell.trace.engine.policies import Endless, Policies

    monkeypatch.setattr(session, "Policies", partial(Policies, limit=500))

    def function(x: Any) -> Any:
        while x.sum().item() > -1:
            x = x - 1
        return x

    with pytest.raises(Endless, match="more than 500 times"):
        trace(function)


def test_a_loop_that_only_makes_storages_ends_with_an_error() -> None:
    from foretell.trace.engine.recorder import TooLong

    def function(x: Any) -> Any:
        while True:
            x = x + 1

    with pytest.raises(TooLong, match="more than 2,000 events"):
        trace(function, limit=2_000)


# -- experts --------------------------------------------------------------------------------------------------


class Experts(torch.nn.Module):  # type: ignore[misc]
    """Asks for the tokens of each of four experts, as code without grouped products does."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = 4

    def forward(self, x: Any) -> Any:
        mask = torch.nn.functional.one_hot(x.topk(2, dim=1)[1], self.num_experts + 1).permute(2, 1, 0)  # [expert, choice, token]
        for expert in (mask.sum(dim=(1, 2)) > 0).nonzero():
            _, token = torch.where(mask[expert[0]])
            x = x + torch.zeros_like(x).index_add(0, token, x[token])
        return x


@pytest.mark.parametrize("skew", [1.0, 2.0])
def test_tokens_are_routed_evenly_or_with_skew(skew: float) -> None:
    recording = trace(Experts(), skew=skew)
    hit = [s.bytes for s in recording.storages if s.op == "aten::nonzero"]
    share = int(ROWS * 2 / 4 * skew)
    assert hit == [8 * 4, *[2 * 8 * share] * 4] * 2
    how = "evenly" if skew == 1 else "with skew 2"
    assert recording.about["policies"][f"aten::nonzero: tokens routed {how}"] == 10


def test_a_models_configuration_does_not_make_every_mask_one_of_experts() -> None:
    from foretell.trace.engine.policies import Unanswerable

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.config = type("Config", (), {"num_experts": 4})()

        def forward(self, x: Any) -> Any:
            return x[x[:, 0] > 0]

    with pytest.raises(Unanswerable):
        trace(Attention())

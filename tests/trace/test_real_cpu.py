"""Real steps on the CPU against their traces: the same storages in the same order, to the byte.

Three things are compared: a trace with fake tensors, a real run under the same recorder, and a real run that nobody watches, of
which torch's profiler tells what was asked of the allocator.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from foretell.trace.events import PhaseName, Recording

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


JOBS: dict[str, Callable[[], Any]] = _load("models").JOBS


class Event(NamedTuple):
    allocates: bool
    op: str
    bytes: int


@dataclass(frozen=True)
class Missing:
    """Storages of a real run that its trace does not have."""

    op: str
    bytes: int
    count: int
    reason: str


EXCEPTIONS = {
    "LSTM": Missing("aten::mkldnn_rnn_layer", 573_440, 4, "oneDNN alone knows the size of its workspace; the fake kernel says 0")
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def recorded(name: str, *, fake: bool, evaluate: bool = False) -> Recording:
    from foretell.trace.engine.session import Settings, Traced, machine

    if name == "UNet":
        pytest.importorskip("diffusers")
    with Traced(JOBS[name], machine(Settings(device="cpu", fake=fake, evaluate=evaluate))) as traced:
        return traced.record()


def events(recording: Recording) -> list[Event]:
    return [Event(allocates, storage.op, storage.bytes) for allocates, _, storage in recording.events()]


def without(stream: list[Event], left_out: Missing) -> list[Event]:
    return [e for e in stream if (e.op, e.bytes) != (left_out.op, left_out.bytes)]


def test_exceptions_are_few() -> None:
    assert len(JOBS) >= 40
    assert len(EXCEPTIONS) < 3


@pytest.mark.parametrize("name", JOBS)
def test_trace_is_the_real_run(name: str) -> None:
    traced, ran = recorded(name, fake=True), recorded(name, fake=False)
    expected, real = events(traced), events(ran)
    if name in EXCEPTIONS:
        known = EXCEPTIONS[name]
        assert real.count(Event(True, known.op, known.bytes)) == known.count
        real = without(real, known)
    else:
        assert [msgspec.to_builtins(p) for p in traced.phases] == [msgspec.to_builtins(p) for p in ran.phases]
        assert [(s.category, s.module, s.line) for s in traced.storages] == [(s.category, s.module, s.line) for s in ran.storages]
    assert expected == real


@pytest.mark.parametrize("name", ["mlp", "torch encoder", "Llama", "BERT", "ConvNext"])
def test_evaluation_too(name: str) -> None:
    traced = recorded(name, fake=True, evaluate=True)
    assert events(traced) == events(recorded(name, fake=False, evaluate=True))
    assert len(traced.order) > len(recorded(name, fake=True).order)


# -- a run that nobody watches --------------------------------------------------------------------------------

UNWATCHED = (
    "mlp, SGD with momentum, 3 micro-steps, clipped", "torch encoder", "checkpoint, re-entrant",
    "GPT-2, eager attention, autocast", "Llama, foreach AdamW, 2 micro-steps", "Llama, LoRA, bf16", "Mixtral, batched_mm",
    "Mixtral, eager", "Mamba", "T5", "Swin",
)  # fmt: skip
"""Jobs with sums of gradients, gathered weights, masks and biases: where torch works in place as long as nobody watches."""
MARK = 7_777
"""Bytes of the storage that stands for the beginning of a phase in the profiler's list; no job has one like it."""
Sizes = dict[tuple[str, int, int], Counter[int]]


def profiled(name: str) -> tuple[Sizes, Counter[str]]:
    """Run a job without a recorder; return what each phase asked for, and how often each operator was called."""
    from foretell.trace.engine.checks import job_from
    from foretell.trace.engine.loop import Loop
    from foretell.trace.engine.patches import applied
    from foretell.trace.engine.recorder import Recorder

    marks: list[tuple[str, int, int]] = []

    class Blind(Recorder):  # type: ignore[no-untyped-call]  # of torch's __init_subclass__
        """Learns of phases, and is never made the active mode."""

        def phase(self, name: PhaseName, step: int, micro: int) -> None:
            super().phase(name, step, micro)
            torch.empty(MARK, dtype=torch.uint8)
            marks.append((name, step, micro))

        def see(self, *_: Any) -> None:
            pass

        def end(self) -> None:
            self.phase("other", 2, 0)

    with applied(fake=False), torch.device("cpu"):
        torch.manual_seed(0)
        job, blind = job_from(JOBS[name]()), Blind("cpu", fake=False)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            Loop(job, blind).run(2)
    happened = sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    parts: list[Counter[int]] = []
    for event in happened:
        if event.name() == "[memory]" and event.nbytes() == MARK:
            parts.append(Counter())
        elif event.name() == "[memory]" and event.nbytes() > 0 and parts:
            parts[-1][event.nbytes()] += 1
    sizes: Sizes = {}
    for mark, part in zip(marks, parts, strict=True):
        sizes.setdefault(mark, Counter()).update(part)
    return sizes, Counter(e.name() for e in happened)


@pytest.mark.parametrize("name", UNWATCHED)
def test_an_unwatched_run_asks_for_all_that_is_traced(name: str) -> None:
    traced = recorded(name, fake=True)
    of_event = traced.phase_of()
    expected: Sizes = {}
    for at, (allocates, _, storage) in enumerate(traced.events()):
        phase = traced.phases[of_event[at]]
        if allocates and phase.name != "load":
            expected.setdefault((phase.name, phase.step, phase.micro), Counter())[storage.bytes] += 1
    sizes, called = profiled(name)
    only_traced = {phase: counts - sizes[phase] for phase, counts in expected.items()}
    assert not any(only_traced.values())
    assert sum(s.op == "aten::add" for s in traced.storages) == called["aten::add"]
    assert called["aten::index_put"] == called["aten::scatter"] == 0


# -- categories and places ------------------------------------------------------------------------------------


def live_at(recording: Recording, at: int) -> set[int]:
    live: set[int] = set()
    for entry in recording.order[:at]:
        if entry >= 0:
            live.add(entry)
        else:
            live.discard(~entry)
    return live


def bytes_of(recording: Recording, at: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for index in live_at(recording, at):
        found[recording.storages[index].category] += recording.storages[index].bytes
    return found


def start(recording: Recording, name: str, step: int = 0) -> int:
    return next(p.start for p in recording.phases if (p.name, p.step) == (name, step))


def model_bytes(name: str) -> tuple[int, int, int]:
    """Bytes of parameters, bytes of buffers, number of trained parameters."""
    model = JOBS[name]().model
    parameters = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}
    buffers = {b.untyped_storage()._cdata: b.untyped_storage().nbytes() for b in model.buffers()}
    return sum(parameters.values()), sum(buffers.values()), sum(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", ["Llama", "Llama, bf16, fused AdamW, clipped", "Llama, checkpoint", "GPT-2"])
def test_states_have_the_bytes_of_the_model(name: str) -> None:
    recording = recorded(name, fake=True)
    parameters, buffers, tensors = model_bytes(name)
    at_step = bytes_of(recording, start(recording, "optimizer"))
    at_end = bytes_of(recording, start(recording, "forward", 1))
    assert at_step["parameter"] == parameters + buffers
    assert at_step["gradient"] == parameters
    assert at_step["optimizer"] == 0
    assert at_end["optimizer"] == 2 * parameters + 4 * tensors
    assert at_end["gradient"] == 0


def test_adapters_alone_have_gradients() -> None:
    recording = recorded("Llama, LoRA, bf16", fake=True)
    model = JOBS["Llama, LoRA, bf16"]().model
    trained = [p.numel() * p.element_size() for p in model.parameters() if p.requires_grad]
    at_step = bytes_of(recording, start(recording, "optimizer"))
    assert at_step["gradient"] == sum(trained)
    assert sum(at_step[c] for c in ("parameter", "input")) > 5 * sum(trained)


def test_places_are_the_models_own() -> None:
    recording = recorded("Llama", fake=True)
    modules = {name for name, _ in JOBS["Llama"]().model.named_modules()} | {"LlamaForCausalLM", ""}
    forward = [s for s in recording.storages if recording.phases[s.phase].name == "forward" and s.category != "input"]
    backward = [s for s in recording.storages if recording.phases[s.phase].name == "backward"]
    assert {s.module for s in recording.storages} <= modules
    assert {"model.layers.0.mlp.gate_proj", "model.layers.1.self_attn", "lm_head"} <= {s.module for s in forward}
    assert all("transformers/" in s.line for s in forward if s.module)
    assert sum(s.bytes for s in backward if s.module) > 0.8 * sum(s.bytes for s in backward)


def test_activations_are_what_autograd_saved_and_what_the_caller_held() -> None:
    from foretell.trace.classify import classify

    recording = recorded("Llama", fake=False)
    classify(recording)
    begins = start(recording, "backward")
    activations = bytes_of(recording, begins)["activation"]
    saved = saved_bytes("Llama")
    words, vocabulary = 2 * 48, 500
    held = words * vocabulary * 4 + words * 64 * 4  # logits and the last hidden state are in the model's output
    assert saved <= activations <= saved + held
    assert bytes_of(recording, begins)["temporary"] == 0


def saved_bytes(name: str) -> int:
    """Bytes that autograd saves in one real forward pass, without weights and inputs."""
    job = JOBS[name]()
    batch = job.batch()
    known = {
        t.untyped_storage()._cdata for t in (*job.model.parameters(), *job.model.buffers(), *batch.values()) if hasattr(t, "data")
    }
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = job.model(**batch).loss
    total: int = sum(s.nbytes() for s in storages.values())
    del loss
    return total


@pytest.mark.parametrize(("plain", "checkpointed"), [("Llama", "Llama, checkpoint")])
def test_what_is_computed_again_is_no_activation(plain: str, checkpointed: str) -> None:
    from foretell.trace.classify import classify

    kept = {}
    for name in (plain, checkpointed):
        recording = recorded(name, fake=True)
        classify(recording)
        kept[name] = sum(s.bytes for s in recording.storages if s.category == "activation")
        assert not any(s.category == "activation" and recording.phases[s.phase].name == "backward" for s in recording.storages)
    assert kept[checkpointed] < 0.5 * kept[plain]

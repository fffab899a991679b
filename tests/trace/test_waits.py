"""Memory that is given up while another stream uses it: in the engine, in a recording, in the allocator's replay."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from foretell.errors import ConfigError
from foretell.trace import Recording, TraceRequest, record
from foretell.trace.classify import classify
from foretell.trace.events import Phase, Storage, load
from foretell.trace.levels import category_levels, live_at
from foretell.trace.replay import replay, required_capacity
from foretell.trace.segments import SegmentState
from small_trace import waiting

MIB = 1 << 20


def recording(sizes: list[float], order: list[int], asked: dict[int, int]) -> Recording:
    """Sizes in MiB."""
    made = [Storage(int(size * MIB), "aten::mm", 0) for size in sizes]
    return Recording(made, order, [Phase("other", 0, 0, 0)], asked=asked)


# -- replay ----------------------------------------------------------------------------------------------------


def test_a_block_is_active_until_the_other_stream_is_done() -> None:
    seen = replay(recording([12, 12, 12], [0, 1, ~0, 2], {0: 1}))
    assert (seen.allocated / MIB).tolist() == [12, 12, 12, 24]
    assert (seen.active / MIB).tolist() == [12, 24, 12, 24]
    assert (seen.requested / MIB).tolist() == [12, 12, 12, 24]
    assert (seen.reserved / MIB).tolist() == [12, 24, 24, 24]
    assert (seen.peak_allocated.bytes, seen.peak_active.bytes) == (24 * MIB, 24 * MIB)
    assert seen.address[2] == seen.address[0] != seen.address[1]


def test_blocks_that_wait_are_told_apart() -> None:
    seen = replay(recording([12, 12], [0, 1, ~0], {0: 1}))
    at_1 = seen.segments(1)
    assert [(b.storage, b.waits) for s in sorted(at_1, key=_first) for b in s.blocks] == [(0, True), (1, False)]
    assert sum(s.allocated for s in at_1) == seen.allocated[1]
    assert sum(s.active for s in at_1) == seen.active[1]
    assert live_at(seen.recording, 1).tolist() == [1]
    assert category_levels(seen.recording, seen.block, np.arange(3)).sum(axis=0).tolist() == seen.allocated.tolist()


def _first(segment: SegmentState) -> int:
    return min(block.storage or 0 for block in segment.blocks)


def test_a_full_device_waits_for_the_other_stream() -> None:
    made = recording([12, 12, 12], [0, 1, 2, ~0], {0: 1})
    seen = replay(made, capacity=24 * MIB)
    assert seen.oom is None
    assert seen.retries == 1
    assert seen.early == {0: 2}
    assert (seen.active / MIB).tolist()[:4] == [12, 24, 24, 24]
    assert (seen.allocated / MIB).tolist()[:4] == [12, 12, 24, 24]
    assert [b.storage for s in seen.segments(3) for b in s.blocks if b.storage is not None] in ([1, 2], [2, 1])
    assert required_capacity(made) == 24 * MIB


@pytest.mark.parametrize("seed", range(6))
def test_waiting_changes_what_is_allocated_and_not_what_is_reserved(seed: int) -> None:
    made = waiting(600, seed=seed)
    plain = Recording(made.storages, made.order, made.phases)
    seen, without = replay(made), replay(plain)
    assert (seen.active == without.allocated).all()
    assert (seen.reserved == without.reserved).all()
    assert (seen.allocated <= seen.active).all()
    assert seen.allocated.sum() < seen.active.sum()
    for event in (100, 300, 599):
        segments = seen.segments(event)
        assert sum(s.allocated for s in segments) == seen.allocated[event]
        assert sum(s.active for s in segments) == seen.active[event]
    needed = required_capacity(made)
    assert needed is not None
    assert replay(made, capacity=needed).oom is None
    assert replay(made, capacity=needed - 1).oom is not None


def test_what_waits_is_saved() -> None:
    made = waiting(200)
    again = load(made.dump(), "here")
    assert again.asked == made.asked != {}
    assert (replay(again).allocated == replay(made).allocated).all()


@pytest.mark.parametrize("asked", [{0: 0}, {0: 3}, {1: 1}, {2: 1}, {-1: 1}])
def test_times_that_cannot_be_are_refused(asked: dict[int, int]) -> None:
    with pytest.raises(ConfigError, match="asked"):
        load(recording([1, 1], [0, 1, ~0], asked).dump(), "here")


def test_what_was_given_up_in_the_forward_pass_is_no_activation() -> None:
    phases = [Phase("forward", 0, 0, 0), Phase("backward", 0, 0, 2)]
    made = [Storage(MIB, "aten::mm", 0) for _ in range(2)]
    kept = Recording(made, [0, 1, ~0, ~1], phases, asked={0: 1})
    classify(kept)
    assert [s.category for s in kept.storages] == ["temporary", "activation"]


# -- engine ----------------------------------------------------------------------------------------------------

JOBS = """
import torch
from torch import nn
from foretell.trace import Job

def _waits(wait):
    def step(model, batch, optimizer):
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        first = torch.empty(2**20)
        first.record_stream(side)
        del first
        second = torch.empty(2**20)
        wait(side, event, second)
        third = torch.empty(2**20)
    return Job(nn.Linear(1, 1), batch=(), step=step)

def nothing():
    return _waits(lambda side, event, x: None)

def earlier_event():
    def wait(side, event, x):
        torch.cuda.current_stream().wait_stream(side)
        x.to("cpu", non_blocking=True)
        early.synchronize()
    early = torch.cuda.Event()
    early.record()
    return _waits(wait)

def own_stream():
    def step(model, batch, optimizer):
        first = torch.empty(2**20)
        first.record_stream(torch.cuda.current_stream())
        del first
        second, third = torch.empty(2**20), torch.empty(2**20)
    return Job(nn.Linear(1, 1), batch=(), step=step)

def event():
    return _waits(lambda side, event, x: (event.record(), x.add_(1), event.synchronize()))

def stream():
    return _waits(lambda side, event, x: side.synchronize())

def device():
    return _waits(lambda side, event, x: torch.cuda.synchronize())

def value():
    return _waits(lambda side, event, x: x.sum().item())

def copy():
    return _waits(lambda side, event, x: x[:1].cpu())

def queue():
    return _waits(lambda side, event, x: [x.add_(1) for _ in range(1024)])

def views():
    return _waits(lambda side, event, x: [x.view(-1) for _ in range(1024)])

def sharded():
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    torch.distributed.init_process_group("nccl")
    layers = [FSDP(nn.Linear(1024, 1024, bias=False), use_orig_params=True) for _ in range(6)]
    model = FSDP(nn.Sequential(*layers), use_orig_params=True)
    return Job(model, batch=lambda: torch.randn(4, 1024), loss=lambda m, b: m(b).sum(),
               optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))
"""


@cache
def traced(name: str, world: int = 1) -> Recording:
    with TemporaryDirectory() as folder:
        Path(folder, "jobs.py").write_text(JOBS)
        return record(TraceRequest(target=f"jobs.py:{name}", folder=folder, world=world, steps=1))


def blocks(made: Recording) -> list[int]:
    """Where the step's three tensors of 4 MiB are."""
    seen = replay(made)
    return [int(seen.address[i]) for i, s in enumerate(made.storages) if s.bytes == 4 * MIB and s.op == "aten::empty"]


@pytest.mark.parametrize("name", ["nothing", "earlier_event", "views"])
def test_memory_of_another_stream_is_not_given_to_the_next(name: str) -> None:
    made = traced(name)
    assert list(made.asked) == [next(i for i, s in enumerate(made.storages) if s.bytes == 4 * MIB)]
    assert len(set(blocks(made))) == 3
    seen = replay(made)
    assert seen.peak_active.bytes - seen.peak_allocated.bytes == 4 * MIB


@pytest.mark.parametrize("name", ["event", "stream", "device", "value", "copy", "queue"])
def test_it_is_when_the_host_has_waited(name: str) -> None:
    first, second, third = blocks(traced(name))
    assert first == third != second


def test_a_tensors_own_stream_is_no_other() -> None:
    made = traced("own_stream")
    assert not made.asked
    first, second, _ = blocks(made)
    assert first == second


def test_gathered_weights_stay_until_the_unit_after_the_next() -> None:
    """FSDP1 lets the host wait until no more than two units' weights are on their way (``_FreeEventQueue``)."""
    made = traced("sharded", 4)
    seen = replay(made)
    forward = next(slice(a.start, b.start) for a, b in pairwise(made.phases) if a.name == "forward")
    assert int((seen.active - seen.allocated)[forward].max()) == 2 * 4 * MIB
    gathered = {int(seen.address[i]) for i in made.asked if made.storages[i].phase == made.phases.index(_forward(made))}
    assert len(gathered) == 2
    assert seen.peak_active.bytes > seen.peak_allocated.bytes


def _forward(made: Recording) -> Phase:
    return next(phase for phase in made.phases if phase.name == "forward")

"""ServingCapacityModel: how many replicas serve requests at a rate, with 99 of 100 answered in time."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core.serving import Deployment
from foretell.core.solver._replica import Replica
from foretell.core.solver._result import Result
from foretell.core.solver._serving import around, lengths, remarks, served
from foretell.core.solver.continuous_batching import memory_trace
from foretell.core.solver.tail_latency import seconds_of
from foretell.cost.serving_flow import Traffic, resident_limit
from foretell.errors import CombinationError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.operations.queueing import Queue
from foretell.operations.shared_service import occupancy, servers_needed
from foretell.units import parse
from foretell.validation import MAX_SEQUENCE, number, positive_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.core.solver._table import Table

__all__ = ["ServingCapacityModel", "ServingCapacityResult"]

SHARE: Final = 0.99
"""Of the requests, which have to be answered in time."""
LEAST_RATE: Final = 1e-9
MOST_RATE: Final = 1e9
MOST_CV: Final = 1000.0
BOUNDS: Final = ("memory", "prefill", "decode", "queue", "base latency")
"""What can hold a service up."""


@dataclass(frozen=True)
class ServingCapacityResult(Result):
    """Replicas behind one balancer.  Seconds; the names without `_s` are pint quantities.  None where nothing can be served."""

    title: ClassVar[str] = "replicas"

    feasible: bool
    """Whether so many replicas as are allowed answer 99 of 100 requests in time."""
    required_replicas: int | None
    """The fewest that do, even where they are more than `max_replicas`; None where no number does."""
    devices: int | None
    """Accelerators of all of them."""
    qps_target: float
    qps_capacity: float
    """Requests a second that the replicas keep up with."""
    per_replica_qps_capacity: float
    """... one of them, prompts and answers."""
    utilization: float | None
    """Requests over what the replicas keep up with."""
    target_p99_latency_s: float
    estimated_p99_latency_s: float | None
    """99 of 100 requests are answered within this, from the first byte of the question to the last of the answer."""
    estimated_p99_interval_s: tuple[float, float] | None
    """90 % interval of it; None where `efficiency` is a share of the peak."""
    mean_latency_s: float | None
    base_request_latency_s: float | None
    """Of a request that finds an idle replica."""
    queue_wait_p99_s: float | None
    """99 of 100 requests wait no longer for a place in a batch."""
    active_batch_size: float | None
    """Requests that a replica holds on average."""
    max_active_requests: int
    """... at most: `max_batch_size`, or what its memory holds."""
    ttft_s: float | None
    """Mean time to first token."""
    itl_s: float | None
    """Mean time between two tokens of a request, the reading of others' prompts counted."""
    bottleneck: str
    """What asks for so many replicas, or prevents it: memory (no request fits, or KV holds the batch down), prefill, decode,
    queue (the wait for a place), base latency (an idle replica is too slow)."""
    prefill_share: float | None
    """Of a full replica's time, spent on prompts."""
    prompt_tokens: float
    output_tokens: float
    constraint_trace: list[str]
    """How the number of replicas comes about."""
    notes: list[str]
    """Assumptions made, terms left out."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data; infinities, which JSON lacks, are None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in super().to_dict().items()
        }

    def explain(self) -> str:
        """Return how the number of replicas comes about, as text."""
        count = "no number of replicas" if self.required_replicas is None else f"{self.required_replicas} replicas"
        lines = [f"{count} for {self.qps_target:g} requests/s: {self.bottleneck}"]
        if self.estimated_p99_latency_s is not None and self.base_request_latency_s is not None:
            lines += [
                f"  idle replica       {self.base_request_latency_s:.4g} s a request",
                f"  99 of 100 within   {self.estimated_p99_latency_s:.4g} s of the {self.target_p99_latency_s:.4g} s asked",
                f"  one replica        {self.per_replica_qps_capacity:.4g} requests/s at most",
            ]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class ServingCapacityModel:
    """How many replicas serve `qps` requests a second, so that 99 of 100 are answered within `target_p99_latency_ms`?

    A request has `seq_len` tokens (or `mean_request_tokens` of at most `seq_len`; `max_seq_len` is another name of it), of which
    `output_tokens` are made.  Requests arrive at random (Poisson) at a balancer, which gives each to the replica that holds the
    fewest.  A replica batches continuously, `max_batch_size` requests at most: its steps decode, and read the prompts of those
    that came; reading takes its time too.  Alone on a replica, a request waits for nobody.

    The time is that of the whole request, of one with so many tokens: `service_time_cv`, the standard deviation of a request's
    work over its mean, makes waits for a place longer.  Where no replica is fast enough, `feasible` is False and `bottleneck`
    says why.  `precision`, `weights`, `kv_format`, `efficiency`, `engine` and the sizes of a replica: as for ServingModel.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        qps: float,
        target_p99_latency_ms: object,
        seq_len: int | None = None,
        output_tokens: int = 128,
        max_batch_size: int = 32,
        precision: str = "fp16",
        efficiency: float | str = 0.5,
        max_replicas: int = 1024,
        service_time_cv: float = 1.0,
        max_seq_len: int | None = None,
        mean_request_tokens: float | None = None,
        tp_size: int = 1,
        pp_size: int = 1,
        ep_size: int = 1,
        engine: str | None = None,
        engine_version: str | None = None,
        weights: str | None = None,
        kv_format: str | None = None,
        memory_share: float | None = None,
    ) -> ServingCapacityResult:
        """Answer for one load; InputError or CombinationError for what cannot be served so.

        >>> result = ServingCapacityModel().solve("llama-3.1-8b", "h100", qps=30, target_p99_latency_ms=4000)
        >>> result.feasible, result.required_replicas > 1
        (True, True)
        """
        asked = Asked.of(
            load_model(model),
            load_hardware(hardware),
            {
                "seq_len": seq_len,
                "max_seq_len": max_seq_len,
                "mean_request_tokens": mean_request_tokens,
                "output_tokens": output_tokens,
                "max_batch_size": max_batch_size,
                "precision": precision,
                "efficiency": efficiency,
                "tp_size": tp_size,
                "pp_size": pp_size,
                "ep_size": ep_size,
                "engine": engine,
                "engine_version": engine_version,
                "weights": weights,
                "kv_format": kv_format,
                "memory_share": memory_share,
            },
        )
        rate, target = rate_of(qps), target_of(target_p99_latency_ms)
        most, cv = replicas_of(max_replicas), cv_of(service_time_cv)
        return _answer(asked, rate, target, most, cv)

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason, those that cannot be met are not `feasible`.
        """
        from foretell.core.solver._serving_sweep import sweep_capacity  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep_capacity(load_model(model), load_hardware(hardware), axes, product=product)


def rate_of(value: object) -> float:
    """Return requests a second."""
    return number(parse(value, "1/s", "qps"), "qps", minimum=LEAST_RATE, maximum=MOST_RATE)


def target_of(value: object) -> float:
    """Return the seconds of a latency given in milliseconds, as text or as a quantity."""
    return seconds_of(value, "target_p99_latency_ms")


def replicas_of(value: object) -> int:
    """Return the replicas that are allowed."""
    return positive_int(value, "max_replicas")


def cv_of(value: object) -> float:
    """Return a spread of work."""
    return number(value, "service_time_cv", maximum=MOST_CV)


@dataclass(frozen=True, slots=True)
class Asked:
    """A kind of replica and the requests that it serves."""

    found: Deployment
    traffic: Traffic
    longest: int
    places: int
    """max_batch_size."""

    @classmethod
    def of(cls, workload: Workload, device: HardwareNode, given: Mapping[str, Any]) -> Asked:
        """Check what does not depend on the load."""
        seq_len = 2048 if given["seq_len"] is None and given["max_seq_len"] is None else given["seq_len"]
        longest, mean = lengths(seq_len, given["max_seq_len"], given["mean_request_tokens"])
        outputs = positive_int(given["output_tokens"], "output_tokens", maximum=MAX_SEQUENCE)
        if outputs >= mean:
            problem = "leaves no prompt of the request's tokens"
            raise CombinationError(problem, field="output_tokens", value=outputs, allowed=f"below {mean:g}")
        places = positive_int(given["max_batch_size"], "max_batch_size", maximum=MAX_SEQUENCE)
        found = served(
            workload,
            device,
            given["precision"],
            given["efficiency"],
            given,
            max_num_seqs=places,
            max_model_len=longest,
            memory_share=given["memory_share"],
        )
        return cls(found, Traffic(max(mean - outputs, 1.0), float(outputs)), longest, places)

    @property
    def fits(self) -> bool:
        """Whether a replica holds its weights and one request, the longest."""
        capacity = self.found.capacity
        return capacity.feasible and float(capacity.concurrency(self.longest)) >= 1.0

    @property
    def most(self) -> float:
        """Requests that a replica holds at most, on average over their growth."""
        return resident_limit(self.traffic, self.found.limits)[0]


@dataclass(frozen=True, slots=True)
class Sized:
    """Replicas for loads, row by row."""

    needed: NDArray[Any]
    """Replicas; 0: none do."""
    count: NDArray[Any]
    """Those that are answered for: the replicas needed, else all that are allowed."""
    response: NDArray[Any]
    """Seconds that 99 of 100 requests take at most."""
    wait: NDArray[Any]
    """... that they wait for a place at most."""
    mean: NDArray[Any]
    """Mean seconds of a request."""
    first: NDArray[Any]
    """... to its first token."""
    itl: NDArray[Any]
    """... between two tokens."""
    held: NDArray[Any]
    """Requests that a replica holds on average."""
    bottleneck: NDArray[Any]
    """Places in :data:`BOUNDS`."""


def sized(replica: Replica, rate: NDArray[Any], target: NDArray[Any], most: NDArray[Any], cv: NDArray[Any]) -> Sized:
    """Return the replicas that each load needs, and what then is."""
    import numpy as np  # noqa: PLC0415  # tabling the steps has imported it

    sharing, rows = replica.sharing, len(rate)
    needed = servers_needed(sharing, rate, target - replica.client, SHARE, cv)
    least = np.floor(rate / sharing.largest_rate) + 1.0
    count = np.where(needed > 0, needed, np.maximum(most, least))
    fewer = np.maximum(needed - 1.0, least)  # what one replica less would be held up by
    both = occupancy(sharing, np.tile(rate, 2), np.concatenate([count, fewer]), SHARE, np.tile(cv, 2))
    found, before = both.part(slice(rows)), both.part(slice(rows, None))
    lost = np.interp(before.met, sharing.held, replica.stalled)
    slower = before.response - before.wait - sharing.residence[0] - lost
    # where the replicas just keep up, by what a full one spends its time on; else by what makes requests late
    full = 1 if replica.reading >= 0.5 else 0 if replica.bound == "kv" else 2
    late = np.where(before.wait >= np.maximum(lost, slower), 3, np.where(lost >= slower, 1, 2))
    bottleneck = np.where(needed <= 0, 4, np.where(needed > least, late, full))
    itl = np.interp((found.mean + 1.0) / count, sharing.held, replica.itl)  # one that comes meets those that are there
    first = replica.client + replica.first + _reading_wait(replica, rate, count, cv) + found.mean_wait
    mean = first + max(replica.traffic.outputs - 1.0, 0.0) * itl
    response = found.response + replica.client
    return Sized(needed, count, response, found.wait, mean, first, itl, found.mean / count, bottleneck)


def _reading_wait(replica: Replica, rate: NDArray[Any], count: NDArray[Any], cv: NDArray[Any]) -> NDArray[Any]:
    """Mean seconds for which a prompt waits for those before it.

    A balancer that counts requests, and not the prompts among them, is half way between one queue for all replicas and one for
    each (simulations of 1, 4 and 12).
    """
    import numpy as np  # noqa: PLC0415

    rows = (rate, count, cv)
    values = tuple(float(row[0]) for row in rows) if len(rate) == 1 else rows  # numbers take a tenth of an array's time
    alone, share, spread = values
    waits = 0.5 * Queue.of(alone, replica.prompt, share, spread).mean_wait
    waits = waits + 0.5 * Queue.of(alone / share, replica.prompt, 1.0, spread).mean_wait
    out: NDArray[Any] = np.atleast_1d(np.asarray(waits, float))
    return out


def _answer(asked: Asked, rate: float, target: float, most: int, cv: float) -> ServingCapacityResult:
    traffic = asked.traffic
    common: dict[str, Any] = {
        "qps_target": rate,
        "target_p99_latency_s": target,
        "prompt_tokens": traffic.inputs,
        "output_tokens": traffic.outputs,
        "max_active_requests": int(asked.most),
        "notes": _notes(asked, cv),
    }
    if not asked.fits:
        return _nothing(common, memory_trace(asked.found), "memory")
    import numpy as np  # noqa: PLC0415  # tabling the steps has imported it

    replica = Replica.of(asked.found, traffic)
    found = sized(replica, *(np.array([float(value)]) for value in (rate, target, most, cv)))
    needed, capacity = int(found.needed[0]), replica.sharing.largest_rate
    late = float(found.response[0])
    busy = f"{100 * replica.reading:.3g} % of its time on prompts"
    trace = [
        *memory_trace(asked.found),
        f"one replica: {capacity:.4g} requests/s at most, {busy}; an idle one answers in {replica.alone:.4g} s",
    ]
    if not needed:
        trace.append(f"{replica.alone:.4g} s is more than the {target:.4g} s asked, with any number of replicas")
    elif needed > most:
        trace.append(f"{needed} replicas are needed, {most} are allowed")
    return ServingCapacityResult(
        feasible=0 < needed <= most,
        required_replicas=needed or None,
        devices=needed * asked.found.recipe.devices or None,
        qps_capacity=float(found.count[0]) * capacity,
        per_replica_qps_capacity=capacity,
        utilization=rate / (float(found.count[0]) * capacity),
        estimated_p99_latency_s=late,
        estimated_p99_interval_s=around(late, asked.found, "open", "itl") if math.isfinite(late) else None,
        mean_latency_s=float(found.mean[0]),
        base_request_latency_s=replica.alone,
        queue_wait_p99_s=float(found.wait[0]),
        active_batch_size=float(found.held[0]),
        ttft_s=float(found.first[0]),
        itl_s=float(found.itl[0]) if traffic.outputs > 1 else None,
        bottleneck=BOUNDS[int(found.bottleneck[0])],
        prefill_share=replica.reading,
        constraint_trace=trace,
        **common,
    )


def _nothing(common: dict[str, Any], trace: list[str], bottleneck: str) -> ServingCapacityResult:
    """What is said of a replica that cannot hold one request."""
    unknown: tuple[str, ...] = (
        "required_replicas",
        "devices",
        "utilization",
        "estimated_p99_latency_s",
        "estimated_p99_interval_s",
        "mean_latency_s",
        "base_request_latency_s",
        "queue_wait_p99_s",
        "active_batch_size",
        "ttft_s",
        "itl_s",
        "prefill_share",
    )
    return ServingCapacityResult(
        feasible=False,
        qps_capacity=0.0,
        per_replica_qps_capacity=0.0,
        bottleneck=bottleneck,
        constraint_trace=trace,
        **{**common, **dict.fromkeys(unknown)},
    )


def _notes(asked: Asked, cv: float) -> list[str]:
    t = asked.traffic
    off = "the 99th percentile is off by 6 % (median) of simulations, up to 40 % low where replicas mostly read prompts"
    out = [
        f"requests of {t.inputs:.6g} prompt and {t.outputs:.6g} output tokens, Poisson arrivals, given to the emptiest replica",
        f"a request shares its replica with those that it meets: {off}",
        f"waits, for a place and for prompts before one's own: work with a spread of {cv:g}",
    ]
    return list(dict.fromkeys([*out, *remarks(asked.found)]))

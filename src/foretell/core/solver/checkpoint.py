"""CheckpointModel: how large a checkpoint is, for how long training stands still, when it is safe, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core.saving import SETTINGS, copy_rate, saved_terms
from foretell.core.solver._open import Check, maybe
from foretell.core.solver._result import Result, Term
from foretell.cost.arrays import Value, known, maximum, otherwise
from foretell.cost.checkpoint import CheckpointTerms
from foretell.errors import InputError, nearest
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.operations.saving import MODES, Assumed, Storage, blocked_share, defaults, save_times
from foretell.units import GB, fmt_s, parse
from foretell.validation import choice, number, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["CheckpointModel", "CheckpointResult"]

FORMATS: Final = ("sharded", "consolidated")
"""Each writer writes its own files; or one process gathers everything and writes it."""
_HOUR: Final = 3600.0
_LONGEST_H: Final = 1e5
_FASTEST: Final = 1e15
_UNFIT: Final = "the save is not done when the next one is due"


@dataclass(frozen=True)
class CheckpointResult(Result):
    """A checkpoint of a training job.  Bytes and seconds; the names without `_bytes` and `_s` are pint quantities."""

    title: ClassVar[str] = "checkpoint"

    feasible: bool
    """The save is done before the next one is due."""
    checkpoint_size_bytes: float
    """All that one checkpoint holds."""
    breakdown_bytes: Mapping[str, float]
    write_time_s: float
    """The storage takes the bytes in."""
    blocking_time_s: float
    """Training stands still."""
    save_time_s: float
    """From the start until the checkpoint is safe."""
    durability_lag_s: float
    """... of which training runs on: a failure in it loses this work too."""
    load_time_s: float
    """A restarted job reads it."""
    write_time_interval_s: tuple[float, float]
    """From the low to the high ends of the assumed constants; of rates that were given, the given one."""
    blocking_time_interval_s: tuple[float, float]
    load_time_interval_s: tuple[float, float]
    write_bandwidth_bytes_per_s: float
    """All writers together."""
    required_bandwidth_bytes_per_s: float
    """So that a save that training waits for costs one per cent of the time; so that one beside training ends before the next."""
    storage_bottleneck: bool
    """The write bandwidth is below the required one."""
    mfu_penalty_fraction: float
    """Share of the time that training stands still, block / (interval + block): 0 to below 1."""
    mfu_penalty_pct: float
    """... in per cent."""
    files: int
    file_bytes: float
    """Of one of the files, equal shares."""
    per_device_bytes: float
    """States that one device (or the one that gathers all) copies out."""
    disk_bytes: float
    """Of the checkpoints that are kept, and of the one being written."""
    stalls_collectives: bool
    """The block is longer than a collective waits: ranks that wait for the writers end the job."""
    constraint_trace: list[str]
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]

    def terms(self) -> list[Term]:
        """Return the ledger of the bytes."""
        return [Term(name, size, "", _WHAT[name], "") for name, size in self.breakdown_bytes.items() if size]

    def explain(self) -> str:
        """Return the bytes and the times as text."""
        low, high = self.blocking_time_interval_s
        files = f"{self.files} file{'s' if self.files > 1 else ''}"
        lines = [
            super().explain(),
            f"training stands still {fmt_s(self.blocking_time_s)} ({fmt_s(low)} to {fmt_s(high)}): {self.mfu_penalty_pct:.3g} %",
            f"safe {fmt_s(self.save_time_s)} after its start, {fmt_s(self.durability_lag_s)} of them beside training",
            f"read back in {fmt_s(self.load_time_s)} ({' to '.join(fmt_s(end) for end in self.load_time_interval_s)})",
            f"{files} of {self.file_bytes / GB:.4g} GB; {self.disk_bytes / GB:.6g} GB of storage",
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


_WHAT: Final = {
    "weights": "parameters in their stored format",
    "master_weights": "fp32 copies that the optimizer updates",
    "optimizer_state": "moments of the optimizer",
}


class CheckpointModel:
    """What does saving a training job cost?

    The bytes are those of the memory solver's states, so they follow the optimizer, the precision and the framework: 14 bytes a
    parameter of mixed precision with Adam, 12 where the framework keeps fp32 parameters, 8 with 8-bit moments ...  Every
    `checkpoint_interval_hours` hours of work `n_writers` processes write together, `filesystem_limit_gbs` GB/s (1e9) at most.

    `mode`: "sync" (training waits for the save), "async" (it waits for the copy to the host), "memory" (the copy stays in the
    memory of hosts: it is lost with them).  A storage that is not described is assumed, and said so.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        optimizer: str = "adam",
        checkpoint_interval_hours: float = 4.0,
        n_writers: int = 1,
        filesystem_limit_gbs: float | None = None,
        mode: str = "sync",
        *,
        devices: int | None = None,
        writer_bandwidth: object = None,
        read_bandwidth: object = None,
        format: str = "sharded",  # noqa: A002  # the word that people use
        content: str = "full",
        keep: int = 1,
        **run: Any,  # SETTINGS of the run
    ) -> CheckpointResult:
        """Answer for one run.

        `devices` hold the states in equal shares (None: as many as write); `writer_bandwidth` and `read_bandwidth` are rates
        ("2 GB/s", a number of bytes/s) of one writer and of all readers; `format`: sharded or consolidated (one process gathers
        and writes all); `content`: full or weights; `keep`: finished checkpoints on the storage.  Further settings: precision
        ("fp16"), framework ("generic"), zero_stage, lora_rank, lora_targets, quantization, trainable_fraction.

        Raises InputError for what means nothing.

        >>> r = CheckpointModel().solve("llama-3-8b", "h100", n_writers=64, writer_bandwidth="1 GB/s")
        >>> round(r.checkpoint_size_bytes / 1e9, 2), round(r.write_time_s, 3)
        (112.42, 1.757)
        """
        workload, device = load_model(model), load_hardware(hardware)
        settings = {
            "checkpoint_interval_hours": checkpoint_interval_hours,
            "n_writers": n_writers,
            "filesystem_limit_gbs": filesystem_limit_gbs,
            "devices": devices,
            "writer_bandwidth": writer_bandwidth,
            "read_bandwidth": read_bandwidth,
            "keep": keep,
        }
        plain = {name: check(settings[name]) for name, check in CHECKS.items()}
        words = {"optimizer": optimizer, "mode": mode, "format": format, "content": content} | run
        found = answers(workload, device, plain | words)
        return _result(found, plain, words, copy_rate(device)[1])

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that mean nothing are marked with their reason; those whose save takes longer than the interval are not
        `feasible`.
        """
        from foretell.core.solver._numeric_sweep import Numeric  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        workload, device = load_model(model), load_hardware(hardware)
        words = ("optimizer", "mode", "format", "content", *(name for name in axes if name in SETTINGS))
        how = Numeric(
            CHECKS,
            dict.fromkeys(CHECKS) | DEFAULTS,
            lambda settings: {name: value for name, value in answers(workload, device, settings, ()).items() if name in COLUMNS},
            by="blocking_time_s",
            unfit=_UNFIT,
            walked=words,
        )
        return how.sweep(axes, product=product)


DEFAULTS: Final[dict[str, Any]] = {
    "optimizer": "adam",
    "checkpoint_interval_hours": 4.0,
    "n_writers": 1,
    "mode": "sync",
    "format": "sharded",
    "content": "full",
    "keep": 1,
}


def _rate(field: str) -> Check:
    """Return the check of a rate in bytes a second."""
    return lambda value: number(parse(value, "byte/s", field), field, minimum=1e3, maximum=_FASTEST)


CHECKS: Final[dict[str, Check]] = {
    "checkpoint_interval_hours": lambda value: number(value, "checkpoint_interval_hours", minimum=1e-6, maximum=_LONGEST_H),
    "n_writers": lambda value: positive_int(value, "n_writers"),
    "filesystem_limit_gbs": maybe(lambda value: number(value, "filesystem_limit_gbs", minimum=1e-6, maximum=_FASTEST / GB)),
    "devices": maybe(lambda value: positive_int(value, "devices")),
    "writer_bandwidth": maybe(_rate("writer_bandwidth")),
    "read_bandwidth": maybe(_rate("read_bandwidth")),
    "keep": lambda value: positive_int(value, "keep", minimum=0, maximum=10**6),
}
"""Numeric parameters -> what gives their plain number; NaN for one that is left open."""
COLUMNS: Final = (
    "feasible",
    "checkpoint_size_bytes",
    "write_time_s",
    "blocking_time_s",
    "save_time_s",
    "durability_lag_s",
    "load_time_s",
    "write_bandwidth_bytes_per_s",
    "required_bandwidth_bytes_per_s",
    "mfu_penalty_fraction",
    "mfu_penalty_pct",
    "per_device_bytes",
    "disk_bytes",
)
"""Numbers of an answer."""
_WORDS: Final = ("optimizer", "mode", "format", "content")
_AFFORDED: Final = 0.01
"""Share of the time that a save may cost before the storage counts as the bottleneck."""


def answers(
    model: Workload, device: HardwareNode, settings: Mapping[str, Any], ends: Sequence[str] = ("low", "high")
) -> dict[str, Any]:
    """Return the numbers of an answer, with its times at the ends too; numeric settings may be arrays."""
    mode = choice(settings["mode"], "mode", MODES)
    kind = choice(settings["format"], "format", FORMATS)
    for name in settings:
        if name not in CHECKS and name not in _WORDS and name not in SETTINGS:
            known = [*CHECKS, *_WORDS, *SETTINGS]
            raise InputError("is not a setting", field=name, value=settings[name], allowed=nearest(name, known) or known)
    optimizer = settings["optimizer"]
    if not isinstance(optimizer, str):
        raise InputError("must be a name", field="optimizer", value=optimizer)
    terms = saved_terms(model, optimizer, {name: settings[name] for name in SETTINGS if name in settings}, settings["content"])
    rate, _ = copy_rate(device)
    writers = settings["n_writers"]
    single = kind == "consolidated"
    if single:
        writers = writers * 0 + 1
    each = terms.total if single else terms.total / otherwise(settings["devices"], maximum(writers, 1.0))
    interval = settings["checkpoint_interval_hours"] * _HOUR
    storage = {level: _storage(settings, writers, level) for level in ("value", *ends)}
    times = {level: save_times(terms.total, each, rate, held, mode, Assumed.at(level)) for level, held in storage.items()}
    point, speed = times["value"], storage["value"].write_bytes_per_s
    apart = interval if mode == "sync" else maximum(interval - point.block, 1e-9)
    needed = terms.total / (apart * (_AFFORDED / (1.0 - _AFFORDED) if mode == "sync" else 1.0))
    if mode == "memory":
        needed = needed * 0.0
    lost = blocked_share(point.block, interval)
    return {
        "feasible": point.lag <= interval,
        "checkpoint_size_bytes": terms.total,
        "write_time_s": terms.total / speed,
        "blocking_time_s": point.block,
        "save_time_s": point.save,
        "durability_lag_s": point.lag,
        "load_time_s": point.load,
        "write_bandwidth_bytes_per_s": speed,
        "required_bandwidth_bytes_per_s": needed,
        "mfu_penalty_fraction": lost,
        "mfu_penalty_pct": 100.0 * lost,
        "per_device_bytes": each,
        "disk_bytes": terms.total * (settings["keep"] + (0 if mode == "memory" else 1)),
        "_terms": terms,
        "_times": times,
        "_writers": writers,
        "_write": tuple(terms.total / storage[level].write_bytes_per_s for level in ends),
    }


def _storage(settings: Mapping[str, Any], writers: Value, level: str) -> Storage:
    """Return the storage, what is open from the assumed constants: their end that gives the named end of a time."""
    end = {"low": "high", "high": "low"}.get(level, level)
    constants = defaults()
    limit = otherwise(settings["filesystem_limit_gbs"] * GB, constants["limit_bytes_per_s"][end])
    read = settings["read_bandwidth"]
    writer = otherwise(settings["writer_bandwidth"], constants["writer_bytes_per_s"][end])
    storage = Storage(writers, writer, limit)
    if known(read) is False:
        return storage
    slower = storage.write_bytes_per_s / constants["load_over_save"][level]
    return Storage(writers, writer, limit, otherwise(read, slower))


def _result(
    found: Mapping[str, Any], plain: Mapping[str, Any], words: Mapping[str, Any], about: tuple[str, ...]
) -> CheckpointResult:
    """Return the answer to one question, with its intervals, verdicts and notes."""
    terms: CheckpointTerms = found["_terms"]
    times, writers, mode = found["_times"], int(found["_writers"]), words["mode"]
    interval = plain["checkpoint_interval_hours"] * _HOUR
    timeout = defaults()["timeout_s"]["value"]
    stalls = found["blocking_time_s"] > timeout
    short = mode != "memory" and found["write_bandwidth_bytes_per_s"] < found["required_bandwidth_bytes_per_s"]
    numbers = {name: found[name] for name in COLUMNS}
    many = f"{writers} writer{'s' if writers > 1 else ''}: {numbers['write_bandwidth_bytes_per_s'] / GB:.4g} GB/s together"
    still = f"training stands still {fmt_s(numbers['blocking_time_s'])}: {numbers['mfu_penalty_pct']:.3g} %"
    where = "to the memory of the hosts" if mode == "memory" else f"by {many}, {fmt_s(numbers['write_time_s'])}"
    trace = [
        f"{terms.total / GB:.6g} GB {where}",
        f"every {fmt_s(interval)} of work {still}",
    ]
    if stalls:
        trace.append(f"longer than the {timeout:g} s that collectives wait: ranks that do not write would end the job")
    if not numbers["feasible"]:
        trace.append(f"{_UNFIT}: safe after {fmt_s(numbers['save_time_s'])}, due every {fmt_s(interval)}")
    elif short:
        trace.append(f"the storage holds it up: {numbers['required_bandwidth_bytes_per_s'] / GB:.4g} GB/s are needed")
    return CheckpointResult(
        **numbers,
        breakdown_bytes={
            "weights": terms.weights,
            "master_weights": terms.master_weights,
            "optimizer_state": terms.optimizer_state,
        },
        write_time_interval_s=found["_write"],
        blocking_time_interval_s=(times["low"].block, times["high"].block),
        load_time_interval_s=(times["low"].load, times["high"].load),
        storage_bottleneck=bool(short),
        files=writers,
        file_bytes=terms.total / writers,
        stalls_collectives=bool(stalls),
        constraint_trace=trace,
        notes=[*terms.notes, *about, *_notes(mode, words, plain)],
        assumed=_assumed(plain, words),
        sources=_sources(plain),
    )


def _notes(mode: str, words: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    """Say what the answer takes for granted and leaves out."""
    out = ["gradients, random states, schedules and the data loader's place (kilobytes to megabytes) are left out"]
    if mode == "memory":
        out.append(
            "a copy in the memory of hosts is lost with them: save to storage too, less often, or keep it on a second host"
        )
        idle = [name for name in _STORAGE if known(plain[name])]
        out += [f"no effect on a copy in memory: {', '.join(idle)}"] if idle else []
    if words["content"] == "weights":
        out.append("weights alone: training cannot go on from them as it was")
    if words["format"] == "consolidated":
        out.append("one process gathers and writes everything: it needs the host memory of the whole checkpoint")
    return out


_STORAGE: Final = ("filesystem_limit_gbs", "writer_bandwidth", "read_bandwidth")


def _assumed(plain: Mapping[str, Any], words: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what was left open, with what was taken for it."""
    constants, out = defaults(), []
    for name, key, what in (
        ("writer_bandwidth", "writer_bytes_per_s", "one writer"),
        ("filesystem_limit_gbs", "limit_bytes_per_s", "the storage"),
    ):
        if not known(plain[name]) and words["mode"] != "memory":
            one = constants[key]
            out.append(f"{what} takes in {one['value'] / GB:g} GB/s ({one['low'] / GB:g} to {one['high'] / GB:g})")
    if not known(plain["read_bandwidth"]) and words["mode"] != "memory":
        one = constants["load_over_save"]
        out.append(f"loading takes {one['value']:g} times as long as saving ({one['low']:g} to {one['high']:g}, as published)")
    if "precision" not in words:
        out.append(f"{'bf16' if 'framework' in words else 'fp16'} mixed precision")
    if "framework" not in words:
        out.append("the generic framework's formats")
    if words["mode"] != "sync":
        share = constants["copy_share"]
        out.append(f"copies to the host at {share['value']:g} of its link ({share['low']:g} to {share['high']:g})")
    return tuple(out)


def _sources(plain: Mapping[str, Any]) -> tuple[str, ...]:
    constants = defaults()
    used = ["coordination_s", "copy_share"]
    used += ["writer_bytes_per_s"] if not known(plain["writer_bandwidth"]) else []
    used += ["load_over_save"] if not known(plain["read_bandwidth"]) else []
    return tuple(dict.fromkeys(source for name in used for source in constants[name]["sources"]))

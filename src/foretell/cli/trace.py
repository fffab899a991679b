"""`foretell trace`: the memory timeline of a training step of any PyTorch model, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from foretell.cli._app import Verb
from foretell.cli._options import OUTPUT, add
from foretell.cli._values import fraction, listed, one_of, real, whole
from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell.machine.hardware import HardwareNode
    from foretell.trace.events import Recording
    from foretell.trace.replay import Replay
    from foretell.trace.request import ModelRequest, TraceRequest

__all__ = ["command"]

_FLAG: Final = ""
_TRACE: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "What": (
        ("--model", "MODEL", "In place of TARGET: a catalog name, a config.json, timm:NAME."),
        ("--recording", "FILE", "In place of TARGET: what --save wrote."),
        ("--micro-batch", "N", "Samples of one pass of --model.  [default: 1]"),
        ("--seq-len", "N", "Tokens of one sample of --model.  [default: 2048]"),
        ("--image-size", "N", "Pixels of an image's side.  [default: the model's]"),
        ("--precision", "NAME", "bf16 and fp16 are autocast over fp32; fp32, bf16-true, fp16-true.  [default: bf16]"),
        ("--attention", "NAME", "sdpa or eager.  [default: sdpa]"),
        ("--recompute", "MODE", "none, full or full-reentrant.  [default: none]"),
        ("--optimizer", "NAME", "adamw, adamw-fused, adamw-forloop, adam, adafactor, sgd ...  [default: adamw]"),
        ("--grad-accum", "N", "Passes of one optimizer step.  [default: 1]"),
        ("--clip", "NORM", "Clip gradients to this norm."),
        ("--lora-rank", "N", "Train low-rank adapters of this rank on a frozen base."),
        ("--lora-targets", "A,B", "Matrices that get one.  [default: all-linear]"),
        ("--quantization", "NAME", "nf4: the frozen base in four bits."),
        ("--experts", "NAME", "eager, batched_mm or grouped_mm.  [default: the model's]"),
        ("--sharding", "NAME", "ddp, zero1, zero2, zero3 or fsdp2, over --gpus."),
    ),
    "Run": (
        ("--gpu", "NAME", "Accelerator: a catalog name or a file.  [default: h100]"),
        ("--gpus", "N", "Ranks; the first is traced.  [default: 1]"),
        ("--steps", "N", "Training steps; the first makes the optimizer's states.  [default: 2]"),
        ("--evaluate", _FLAG, "And a pass without gradients after them."),
        ("--sdpa", "NAME", "Kernel of attention: flash, efficient, cudnn, math.  [default: as torch chooses]"),
        ("--skew", "RATIO", "Tokens of an expert over the even share.  [default: 1]"),
        ("--density", "SHARE", "Share of a mask that is set, where sizes depend on it."),
        ("--full", _FLAG, "Record every layer, also where they repeat."),
        ("--device", "NAME", "cuda, or cpu for the operators of a CPU run.  [default: cuda]"),
        ("--time-limit", "SECONDS", "Of the trace.  [default: 600]"),
        ("--memory-limit", "GIB", "Of the tracing process.  [default: 8]"),
    ),
    "Memory": (
        ("--alloc-conf", "TEXT", "Settings of the allocator, as in PYTORCH_ALLOC_CONF."),
        ("--headroom", "SHARE", "Memory to keep free, as 10% or 0.1.  [default: 10%]"),
        ("--compare", "SNAPSHOT", "A memory snapshot of a real run, beside the trace."),
        ("--allow-uncertain", _FLAG, "Take uncertain for a yes."),
    ),
    "Files": (
        ("--save", "FILE", "Write the recording (JSON)."),
        ("--snapshot", "FILE", "Write a snapshot for pytorch.org/memory_viz (pickle)."),
        ("--chrome", "FILE", "Write a trace for ui.perfetto.dev (JSON)."),
        ("--plot", "FILE", "Draw the timeline (.png or .svg)."),
    ),
}  # fmt: skip


def _trace(target: str | None, **options: Any) -> int:  # text or flags
    """Record a training step of TARGET on fake tensors, replay it through PyTorch's allocator, and say who holds the memory.

    TARGET is module:callable or file.py:callable; the callable returns a foretell.trace.Job or a mapping with its fields. Tracing
    RUNS THAT CODE, in a process of its own: trace only code that you would run. Sizes are GiB (2^30 bytes) of one GPU.
    """
    from foretell.cli._print import console, print_json, shown  # noqa: PLC0415
    from foretell.machine import load_hardware  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    _check_files(options)
    if options["recording"] is not None:
        recording, request = _load(target, options), None
        gpu = load_hardware(options["gpu"] or recording.about.get("gpu_id") or "h100")
    else:
        gpu = load_hardware(options["gpu"] or "h100")
        request = _request(target, gpu, options)
        recording = _run(request, options)
        recording.about["gpu_id"] = gpu.id or None
    from foretell.cost.allocator import AllocatorSettings  # noqa: PLC0415
    from foretell.trace.answer import answer  # noqa: PLC0415

    settings = AllocatorSettings.parse(options["alloc_conf"] or "", "option --alloc-conf" if options["alloc_conf"] else None)
    room = fraction(options["headroom"] or "10%", "headroom")
    result, played = answer(recording, gpu, settings, headroom=room)
    result["comparison"] = None if options["compare"] is None else _comparison(options["compare"], recording, played)
    inputs = _inputs(target, gpu, options, request, room)
    _write(recording, played, gpu, inputs["what"], options)
    from foretell.trace.remarks import remarks  # noqa: PLC0415

    document = envelope(
        "trace", inputs, result, notes=remarks(recording, settings, gpu, result["convolution_bytes"]), sources=gpu.sources
    )
    if options["json"]:
        print_json(document)
    else:
        from foretell.report.fit_screen import headline  # noqa: PLC0415
        from foretell.report.trace_screen import show  # noqa: PLC0415

        screen = console()
        if options["quiet"]:
            screen.print(headline(document))
        else:
            show(shown(document), screen)
    good = result["verdict"] == "fits" or (result["verdict"] == "uncertain" and bool(options["allow_uncertain"]))
    return 0 if good else 1


# -- what is asked -------------------------------------------------------------------------------------------

_OF_MODEL: Final = (
    "micro_batch", "seq_len", "image_size", "precision", "attention", "recompute", "optimizer", "grad_accum", "clip",
    "lora_rank", "lora_targets", "quantization", "experts", "sharding",
)  # fmt: skip


_OF_RUN: Final = ("gpus", "steps", "evaluate", "sdpa", "skew", "density", "full", "device", "time_limit", "memory_limit")
_WORDS: Final = ("precision", "attention", "recompute", "optimizer", "quantization", "experts", "sharding")


def _request(target: str | None, gpu: HardwareNode, options: dict[str, Any]) -> TraceRequest:
    """Return the trace that the options ask for.

    Raises:
        InputError: neither or both of TARGET and --model, an option without effect, a value that is not allowed.

    """
    from foretell.trace.request import TraceRequest, capability_of  # noqa: PLC0415

    model = None
    if options["model"] is not None:
        if target is not None:
            raise InputError("and --model are both given", field="TARGET", value=target, hint="Give one of the two")
        model = _model(options)
    elif target is None:
        raise InputError("is missing", field="TARGET", hint="For instance train.py:job, or --model llama-3-8b")
    else:
        idle = [name for name in _OF_MODEL if options[name] is not None]
        if idle:
            flag = f"--{idle[0].replace('_', '-')}"
            raise InputError(
                "shapes a model that --model names; TARGET's own code decides it here", field=idle[0], value=options[idle[0]],
                hint=f"Leave {flag} out, or set it in {target}",
            )  # fmt: skip
    device = one_of(options["device"], "device", ("cuda", "cpu")) or "cuda"
    skew = real(options["skew"], "skew", minimum=1.0, maximum=1e4)
    density = real(options["density"], "density", maximum=1.0)
    return TraceRequest(
        target=target,
        model=model,
        gpu=gpu.name,
        capability=capability_of(gpu),
        gpu_bytes=gpu.memory_bytes,
        device=device,
        world=whole(options["gpus"], "gpus") or 1,
        steps=whole(options["steps"], "steps", maximum=64) or 2,
        evaluate=bool(options["evaluate"]),
        sdpa=options["sdpa"] or "auto",
        skew=1.0 if skew is None else skew,
        density=density,
        full=bool(options["full"]),
    )


def _model(options: dict[str, Any]) -> ModelRequest:
    """Return how --model is trained."""
    from foretell.trace.request import ModelRequest  # noqa: PLC0415

    name = str(options["model"])
    if options["lora_targets"] is not None and options["lora_rank"] is None:
        raise InputError("needs adapters", field="lora_targets", value=options["lora_targets"], hint="Add --lora-rank")
    if name.startswith("timm:"):
        content, where = {"timm": name.removeprefix("timm:")}, "--model"
    else:
        from foretell.arch import config_of  # noqa: PLC0415

        content, where = config_of(name)
    given = {
        "micro_batch": whole(options["micro_batch"], "micro_batch"),
        "seq_len": whole(options["seq_len"], "seq_len"),
        "image_size": whole(options["image_size"], "image_size"),
        "accumulate": whole(options["grad_accum"], "grad_accum"),
        "clip": real(options["clip"], "clip"),
        "lora_rank": whole(options["lora_rank"], "lora_rank"),
        "lora_targets": listed(options["lora_targets"], "lora_targets") or None,
        **{key: options[key] for key in _WORDS},
    }  # fmt: skip
    return ModelRequest(content=content, where=where, **{k: v for k, v in given.items() if v is not None})


def _inputs(
    target: str | None, gpu: HardwareNode, options: dict[str, Any], request: TraceRequest | None, headroom: float
) -> dict[str, Any]:
    """Return every value that was used, defaults included."""
    import msgspec  # noqa: PLC0415

    used: dict[str, Any] = {} if request is None else msgspec.to_builtins(request)
    model = used.pop("model", None) or {}
    model.pop("content", None)
    what = target or options["model"] or options["recording"]
    return {
        "what": str(what),
        "target": target,
        "model": options["model"],
        "recording": options["recording"],
        **{key: model.get(key) for key in ("micro_batch", "seq_len", "image_size", "precision", "attention", "recompute",
                                           "optimizer", "accumulate", "clip", "lora_rank", "lora_targets", "quantization",
                                           "experts", "sharding")},
        "gpu": gpu.id or gpu.name,
        "gpus": used.get("world", 1),
        **{key: used.get(key) for key in ("steps", "evaluate", "sdpa", "skew", "density", "full", "device")},
        "alloc_conf": options["alloc_conf"] or "",
        "headroom": headroom,
    }  # fmt: skip


# -- what is done --------------------------------------------------------------------------------------------


def _run(request: TraceRequest, options: dict[str, Any]) -> Recording:
    """Trace, with a progress bar on a terminal."""
    from foretell.trace.run import MEMORY_LIMIT, TIME_LIMIT, record  # noqa: PLC0415

    seconds = real(options["time_limit"], "time_limit", minimum=1.0)
    gib = real(options["memory_limit"], "memory_limit", minimum=0.5)
    with _progress(quiet=bool(options["json"] or options["quiet"])) as progress:
        return record(
            request,
            progress=progress,
            time_limit=TIME_LIMIT if seconds is None else seconds,
            memory_limit=MEMORY_LIMIT if gib is None else round(gib * 2**30),
        )


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    """Give what is told of progress: a line on stderr that is gone in the end; nothing where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _stage, _events: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,} events"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda stage, events: bar.update(task, description=stage, completed=events)


_MOST_BYTES: Final = 2**30
"""Of a recording that is read."""


def _load(target: str | None, options: dict[str, Any]) -> Recording:
    from foretell.trace.events import load  # noqa: PLC0415

    path = str(options["recording"])
    idle = [name for name in (*_OF_MODEL, *_OF_RUN) if options[name] is not None]
    if idle:
        raise InputError(
            "shapes a trace, which --recording has already", field=idle[0], value=options[idle[0]],
            hint="Leave it out, or trace again",
        )  # fmt: skip
    others = [*(["TARGET"] if target is not None else []), *(["--model"] if options["model"] is not None else [])]
    if others:
        raise InputError(f"and {others[0]} are both given", field="recording", value=path, hint="Give one of the two")
    return load(_read(path, "recording"), path)


def _read(path: str, field: str) -> bytes:
    """Return a file's bytes.

    Raises:
        InputError: it cannot be read, or is larger than any that is meant.

    """
    try:
        file = Path(path)
        if not file.is_file():
            raise InputError("is not a file that can be read", field=field, value=path)
        if file.stat().st_size > _MOST_BYTES:
            raise InputError("is larger than 1 GiB", field=field, value=path)
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", field=field, value=path) from error


def _check_files(options: dict[str, Any]) -> None:
    """Refuse files that could not be written, or that are meant to hold two things."""
    taken = {str(Path(options[name]).resolve()): name for name in ("recording", "compare") if options[name] is not None}
    for name in ("plot", "save", "snapshot", "chrome"):
        _check_place(options[name], name)
        if options[name] is not None:
            other = taken.setdefault(str(Path(options[name]).resolve()), name)
            if other != name:
                raise InputError(f"is the file of --{other} too", field=name, value=options[name])


def _check_place(path: str | None, field: str) -> None:
    """Refuse a file that could not be written, before the work is done."""
    if path is not None and not Path(path).resolve().parent.is_dir():
        raise InputError("lies in a folder that does not exist", field=field, value=path)
    if path is not None and field == "plot":
        from foretell.report.trace_picture import SUFFIXES  # noqa: PLC0415

        if not path.endswith(SUFFIXES):
            raise InputError("must end in one of these", field="plot", value=path, allowed=SUFFIXES)


def _write(recording: Recording, played: Replay, gpu: HardwareNode, what: str, options: dict[str, Any]) -> None:
    """Write the files that were asked for."""
    if options["save"] is not None:
        _put(options["save"], recording.dump(), "save")
    if options["snapshot"] is not None:
        from foretell.trace.snapshot import write_snapshot  # noqa: PLC0415

        _put(options["snapshot"], write_snapshot(recording, played), "snapshot")
    if options["chrome"] is not None:
        from foretell.trace.chrome import write_chrome  # noqa: PLC0415

        _put(options["chrome"], write_chrome(recording, played), "chrome")
    if options["plot"] is not None:
        from foretell.report.trace_picture import draw  # noqa: PLC0415

        draw(recording, played, options["plot"], capacity=gpu.memory_bytes, title=f"{what} on {gpu.name}")


def _put(path: str, data: bytes, field: str) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", field=field, value=path) from error


# -- a real run ----------------------------------------------------------------------------------------------


def _comparison(path: str, recording: Recording, played: Replay) -> dict[str, Any]:
    """Return a real run's snapshot beside the trace."""
    import msgspec  # noqa: PLC0415

    from foretell.trace.compare import compare  # noqa: PLC0415
    from foretell.trace.measured import read_measured  # noqa: PLC0415
    from foretell.trace.model_check import check_model  # noqa: PLC0415

    measured = read_measured(_read(path, "compare"), path)
    if not measured.recording.order:
        raise InputError("holds no memory that could be compared", field="compare", value=path)
    found: dict[str, Any] = msgspec.to_builtins(compare(measured, recording, played))
    return {**found, "allocator": msgspec.to_builtins(check_model(measured))}


command = Verb(
    "trace",
    callback=_trace,
    params=[click.Argument(["target"], required=False)],
    help=_trace.__doc__,
    short_help="The memory timeline of any PyTorch model's training step.",
    examples=(
        "foretell trace --model llama-3-8b --precision bf16-true --gpu h100",
        "foretell trace train.py:job --gpu a100-80gb --plot step.png",
        "foretell trace --model llama-3-8b --gpus 8 --sharding fsdp2 --snapshot step.pickle",
        "foretell trace --recording step.json --alloc-conf expandable_segments:True",
        "foretell trace train.py:job --compare real_snapshot.pickle",
    ),
)
for _heading, _table in _TRACE.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")

"""`foretell checkpoint`: how large a checkpoint is, for how long training stands still, when it is safe."""

from __future__ import annotations

from typing import Any

import click

from foretell.cli._app import Verb
from foretell.cli._operations_options import CHECKPOINT
from foretell.cli._options import OUTPUT, add
from foretell.errors import InputError

__all__ = ["command"]


def _checkpoint(model: str, **options: Any) -> int:  # text or flags
    """Say how large a checkpoint of training MODEL is, for how long training stands still, and when it is safe.

    MODEL is a catalog name, a config.json, or a folder that holds one. GB are 1e9 bytes, GiB 2^30.
    """
    from foretell.cli._operations import give  # noqa: PLC0415  # the rooms below

    def screen() -> Any:
        from foretell.report.operations_jobs_screen import checkpoint_line, show_checkpoint  # noqa: PLC0415

        return checkpoint_line, show_checkpoint

    return give("checkpoint", options, CHECKPOINT, lambda tried: _answer(model, tried), screen)


def _answer(model: str, options: dict[str, Any]) -> Any:
    """Return the answer to the options."""
    from foretell.cli._operations import Answer, hours_in_s  # noqa: PLC0415
    from foretell.cli._values import one_of, whole  # noqa: PLC0415
    from foretell.core._device import usual_precision  # noqa: PLC0415
    from foretell.core.solver import CheckpointModel  # noqa: PLC0415
    from foretell.core.solver.checkpoint import FORMATS  # noqa: PLC0415
    from foretell.cost.checkpoint import CONTENTS  # noqa: PLC0415
    from foretell.machine.hardware import load_hardware  # noqa: PLC0415
    from foretell.operations.saving import MODES  # noqa: PLC0415
    from foretell.recipe.optimizers import optimizer  # noqa: PLC0415
    from foretell.report.operations import checkpoint_of  # noqa: PLC0415

    device = load_hardware("h100" if options["gpu"] is None else options["gpu"])
    usual = usual_precision(device)
    interval = hours_in_s(options["interval"], "interval") or 4 * 3600.0
    keep = whole(options["keep"], "keep", minimum=0, maximum=10**6)
    words: dict[str, Any] = {
        "mode": one_of(options["mode"], "mode", MODES) or "sync",
        "format": one_of(options["format"], "format", FORMATS) or "sharded",
        "content": one_of(options["content"], "content", CONTENTS) or "full",
    }
    run = {
        "precision": usual if options["precision"] is None else options["precision"].strip().casefold(),
        "framework": options["framework"],
        "zero_stage": whole(options["zero"], "zero", minimum=0, maximum=3),
        "lora_rank": whole(options["lora_rank"], "lora_rank", maximum=2**20),
    }
    given: dict[str, Any] = {
        "n_writers": whole(options["writers"], "writers", maximum=10**7) or 1,
        "filesystem_limit_gbs": _gb_a_second(options["filesystem"], "filesystem"),
        "devices": whole(options["devices"], "devices", maximum=10**7),
        "writer_bandwidth": _rate(options["writer_bandwidth"], "writer_bandwidth"),
        "read_bandwidth": _rate(options["read_bandwidth"], "read_bandwidth"),
        "keep": 1 if keep is None else keep,
    }
    named = optimizer("adamw" if options["optimizer"] is None else options["optimizer"]).name
    result = CheckpointModel().solve(
        model,
        device,
        named,
        interval / 3600,
        **words,
        **given,
        **{name: value for name, value in run.items() if value is not None},
    )
    inputs = {
        "model": model,
        "gpu": device.id or device.name,
        "optimizer": named,
        "precision": run["precision"],
        "framework": run["framework"] or "generic",
        "zero": run["zero_stage"],
        "lora_rank": run["lora_rank"],
        "devices": given["devices"] or (1 if words["format"] == "consolidated" else given["n_writers"]),
        "interval_s": interval,
        **words,
        "keep": given["keep"],
        "writers": given["n_writers"],
        "writer_bandwidth_bytes_per_s": given["writer_bandwidth"],
        "filesystem_bytes_per_s": None if given["filesystem_limit_gbs"] is None else 1e9 * given["filesystem_limit_gbs"],
        "read_bandwidth_bytes_per_s": given["read_bandwidth"],
    }
    taken = (("gpu", device.name), ("precision", f"{usual} mixed precision"), ("optimizer", "AdamW"), ("interval", "every 4 h"))
    assumed = [text for name, text in (*taken, ("writers", "1 writer")) if options[name] is None]
    made = checkpoint_of(result, [*assumed, *result.assumed])
    return Answer(inputs, made, tuple(result.notes), result.sources, yes=bool(result.feasible and not result.stalls_collectives))


def _rate(text: str | None, field: str) -> float | None:
    """Return bytes a second from "2GB/s", or None where nothing was given; a bare number could mean several things."""
    from foretell.units import parse  # noqa: PLC0415

    if text is None:
        return None
    value = parse(text, "byte/s", field)
    if not 1e3 <= value <= 1e15:
        raise InputError("is not in range", field=field, value=text, allowed="1 kB/s to 1 PB/s, with its unit, as 2GB/s")
    return value


def _gb_a_second(text: str | None, field: str) -> float | None:
    """Return GB (1e9 bytes) a second from "200" or "200GB/s", or None where nothing was given."""
    from foretell.cli._operations import measure  # noqa: PLC0415

    if text is not None and "/s" in text:
        return (_rate(text, field) or 0.0) / 1e9
    return measure(text, field, "GB (1e9 bytes) a second: a number", most=1e6)


command = Verb(
    "checkpoint",
    callback=_checkpoint,
    help=_checkpoint.__doc__,
    params=[click.Argument(["model"])],
    examples=(
        "foretell checkpoint llama-3-8b",
        "foretell checkpoint llama-3.1-70b --writers 64 --interval 2h",
        "foretell checkpoint llama-3.1-405b --writers 2048 --mode async",
        "foretell checkpoint llama-3-8b --writers 8 --writer-bandwidth 2GB/s --keep 3",
        "foretell checkpoint llama-3-8b --lora-rank 16 --json",
    ),
)
for _heading, _table in CHECKPOINT.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")

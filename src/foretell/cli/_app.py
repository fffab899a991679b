"""The `foretell` group: verbs imported on use, errors as one message or one JSON object, exit codes."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import click

from foretell._version import __version__
from foretell.errors import ForetellError, InputError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Group", "Verb", "app", "run"]

_VERBS = {
    # verb -> (module, one line for the list of verbs)
    "fit": ("foretell.cli.fit", "Does training fit, where is its peak, what would make it fit?"),
    "train": (
        "foretell.cli.train",
        "How long a training step takes, where its time goes, what would shorten it.",
    ),
    "serve": (
        "foretell.cli.serve",
        "How fast a model is served: TTFT, ITL, throughput, KV capacity, how many GPUs.",
    ),
    "check": ("foretell.cli.check", "What a run's own config files or launch line come to, line by line."),
    "trace": ("foretell.cli.trace", "The memory timeline of any PyTorch model's training step, without a GPU."),
    "reliability": ("foretell.cli.reliability", "How often a job fails, how often to save it, what share of the time trains."),
    "checkpoint": ("foretell.cli.checkpoint", "How large a checkpoint is, for how long training stands still."),
    "cost": ("foretell.cli.cost", "What machines cost, owned or rented."),
    "carbon": ("foretell.cli.carbon", "Energy, carbon and water of machines at work."),
    "catalog": (
        "foretell.cli.catalog",
        "Models, hardware and the rest that is known, each with its sources.",
    ),
    "validate": ("foretell.cli.validate", "Replay measured rows and report the errors."),
}
_FLAGS = {
    "zero_stage": "--zero",
    "hardware": "--gpu",
    "adapter": "--lora-rank",
    "topology_override": "--algorithm",
    "memory_share": "--gpu-memory-utilization",
    "kv": "--kv-dtype",
    "version": "--engine-version",
    "prices": "--price",
    "failure": "--record",
    "grid": "--region",
    "checkpoint_time_s": "--checkpoint-time",
    "checkpoint_interval_s": "--interval",
    "checkpoint_interval_hours": "--interval",
    "durability_lag_s": "--lag",
    "recovery_time_s": "--recovery-time",
    "mtbf_hours": "--mtbf",
    "repair_hours": "--repair-time",
    "filesystem_limit_gbs": "--filesystem",
    "n_writers": "--writers",
    "node_power_w": "--node-power",
    "node_price_usd": "--node-price",
    "price_usd_per_device_hour": "--price",
    "network_usd_per_node": "--network-price",
}
"""Options whose name is not that of the field they set."""
_REPORT_TO = "This is a fault of foretell, please report it with the command that you ran"


class Group(click.Group):
    """A group whose verbs are imported when they are used, and listed without being imported."""

    lazy: ClassVar[dict[str, tuple[str, str]]] = _VERBS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the table."""
        del ctx
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb and return its `command`."""
        del ctx
        if cmd_name not in self.lazy:
            return None
        command: click.Command = importlib.import_module(self.lazy[cmd_name][0]).command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say which ones are near."""
        if args and args[0] not in self.lazy:
            near = nearest(args[0], self.lazy, most=1)
            raise InputError(
                "is no verb of foretell",
                field="verb",
                value=args[0],
                allowed=list(self.lazy),
                hint=f"Did you mean {near[0]}?" if near else None,
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


class Verb(click.Command):
    """A verb whose options are listed in groups and whose help ends with examples that run as printed."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        """Keep the examples; they are shown line by line, unwrapped."""
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options under the heading that each names."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=26)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the examples."""
        del ctx
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


@click.command(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    help="Says what a machine-learning job will do before a GPU is touched.",
    epilog="Exit codes: 0 yes, 1 no or uncertain, 2 the input cannot be used, 3 internal fault.",
)
@click.version_option(__version__, prog_name="foretell", message="%(prog)s %(version)s")
def app() -> None:
    """Hold the verbs."""


def run(arguments: Sequence[str]) -> int:  # each way out is a return
    """Run the command line; every way out is an exit code and at most one message, never a traceback."""
    from foretell.cli._print import width  # noqa: PLC0415

    as_json = "--json" in arguments[: list(arguments).index("--") if "--" in arguments else None]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character gets a question mark
    try:
        code = app.main(list(arguments), prog_name="foretell", standalone_mode=False, max_content_width=width())
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _refuse(_from_click(error), as_json=as_json)
    except ForetellError as error:
        if isinstance(error, InputError):
            _place(error, arguments)
        return _refuse(error, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:  # the reader has gone (`| head`): nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  # the last door: what comes here is our own fault
        return _fault(error, as_json=as_json)
    return code if isinstance(code, int) else 0


def _place(error: InputError, arguments: Sequence[str]) -> None:
    """Name the option that a value came from, where nothing nearer is known, and where its help is."""
    flag = _FLAGS.get(error.field or "", f"--{(error.field or '').replace('_', '-')}")
    if error.where is None and any(given == flag or given.startswith(f"{flag}=") for given in arguments):
        error.where = f"option {flag}"
    if error.hint is None and arguments[0] in _VERBS:
        error.hint = f"See: foretell {arguments[0]} --help"


def _refuse(error: ForetellError, *, as_json: bool) -> int:
    """Say what cannot be used, and return the error's exit code."""
    text = json.dumps({"error": error.to_dict()}) if as_json else f"error: {error}"
    click.echo(text, err=True)
    return error.exit_code


def _fault(error: Exception, *, as_json: bool) -> int:
    """Say that the fault is ours; the traceback is shown under FORETELL_DEBUG=1 only."""
    if os.environ.get("FORETELL_DEBUG") == "1":
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
    what = f"{type(error).__name__}: {str(error)[:200]}" if str(error) else type(error).__name__
    hint = f"{_REPORT_TO}; FORETELL_DEBUG=1 shows where it happened"
    if as_json:
        keys = dict.fromkeys(("kind", "field", "value", "allowed", "where", "hint", "message"))
        click.echo(json.dumps({"error": keys | {"kind": "internal", "hint": hint, "message": what}}), err=True)
    else:
        click.echo(f"internal fault: {what}\n{hint}.", err=True)
    return 3


def _from_click(error: click.ClickException) -> InputError:
    """Return click's complaint in our own form."""
    if isinstance(error, click.NoSuchOption):
        near = sorted(error.possibilities or ())
        hint = f"Did you mean {' or '.join(near)}?" if near else "Options are listed by --help."
        return InputError("is no option of this verb", field=error.option_name, hint=hint)
    if isinstance(error, click.MissingParameter):
        name = error.param.name if error.param is not None else None
        return InputError("is missing", field=name, hint=_usage(error))
    return InputError(error.format_message().rstrip("."), hint=_usage(error))


def _usage(error: click.ClickException) -> str | None:
    """Return where the help of the verb is."""
    ctx = getattr(error, "ctx", None)
    return f"See: {ctx.command_path} --help" if ctx is not None else None

"""`foretell check`: what a run's own files or its launch line come to, and the line that each value came from."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from foretell.cli._app import Verb
from foretell.cli._options import OUTPUT, add
from foretell.errors import InputError

__all__ = ["command"]

_COMMAND: Final = "foretell.command"
"""Key of the context under which the words behind "--" wait."""


class _Check(Verb):
    """A verb whose words behind "--" are a command of their own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the words of the command aside."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


def _check(files: tuple[str, ...], **options: Any) -> int:  # text or flags
    """Read a run's own FILES, or its command behind "--", and answer for exactly that run.

    Configurations of axolotl, LLaMA-Factory, the Trainer and TRL, DeepSpeed, accelerate, torchtune, torchtitan, Megatron-LM and
    -Bridge, NeMo, nanotron, LLM Foundry, OLMo, MaxText; commands and scripts that start these, or vLLM, SGLang and TensorRT-LLM.
    Nothing is executed.
    """
    from foretell.cli._check_answer import Checked, answer  # noqa: PLC0415  # the rooms below: 100 ms
    from foretell.cli._check_assert import asserted, parsed  # noqa: PLC0415
    from foretell.cli._print import console, print_json, shown  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    words: tuple[str, ...] = click.get_current_context().meta.get(_COMMAND, ())
    wanted = parsed(options["assert_"])
    log = _log(options["oom"])
    if not files and not words and log is None:
        hint = "For instance: foretell check config.yaml --gpu h100, or foretell check -- vllm serve llama-3-8b"
        raise InputError("is missing: name the files of the run, or its command behind --", field="files", hint=hint)
    checked: Checked = answer(files, words, options, log)
    result = checked.result | {"asserts": asserted(wanted, checked.result)}
    inputs = {"files": list(files), "command": list(words), "set": list(options["set"]), **checked.inputs}
    document = envelope("check", inputs, result, notes=checked.notes, sources=checked.sources)
    if options["json"]:
        print_json(document)
    else:
        from foretell.report.check_screen import assertions, headline, show  # noqa: PLC0415

        if options["quiet"]:
            for line in (headline(shown(document)), *assertions(shown(result), failed=True)):
                console().print(line)
        else:
            show(shown(document), console())
    return _code(result, allow=bool(options["allow_uncertain"]))


def _code(result: dict[str, Any], *, allow: bool) -> int:
    """Return 0 where the answer is yes and all that is asserted holds."""
    if not all(row["holds"] for row in result["asserts"]):
        return 1
    return 0 if result["verdict"] == "fits" or (allow and result["verdict"] == "uncertain") else 1


def _log(path: str | None) -> tuple[str, str] | None:
    """Return the text of a log, and its name; "-" is standard input."""
    if path is None:
        return None
    from foretell.readers.logs import read_log_text  # noqa: PLC0415

    return read_log_text(sys.stdin.buffer if path == "-" else path)


command = _Check(
    "check",
    callback=_check,
    help=_check.__doc__,
    params=[click.Argument(["files"], nargs=-1)],
    examples=(
        "foretell check --gpu h100 -- vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2",
        "foretell check run.yaml --gpu h100 --gpus 8",
        "foretell check train.sh --gpu h100 --assert 'total_bytes < 75 GiB'",
        "foretell check ds_config.json --model llama-3-8b --gpu a100 --gpus 8",
        "foretell check --oom oom.txt",
    ),
)
for _heading, _table in {
    "What the files do not say": (
        ("--gpu", "NAME", "Accelerator: a catalog name or a file."),
        ("--gpus", "N", "Accelerators in all.  [default: what the files say, or 1]"),
        ("--model", "NAME", "Model, in place of the one that the files name: a catalog name, or a config.json."),
        ("--seq-len", "N", "Tokens of one sample."),
        ("--family", "NAME", "Whose files they are: axolotl, megatron ...  [default: found out]"),
        ("--root", "FOLDER", "Files that others refer to may lie here too.  [default: beside them, and the working directory]"),
        ("--online", "", "Fetch the config.json of a model on the hub that is not known here (extra: hub)."),
    ),
    "Question": (
        ("--oom", "FILE", "A log of the run, or of its failure (- reads it from standard input)."),
        ("--headroom", "SHARE", "Memory to keep free, as 10% or 0.1.  [default: 10%]"),
        ("--allow-uncertain", "", "Take uncertain for a yes."),
        ("--no-advice", "", "Do not look for changes that would help."),
    ),
}.items():
    add(command, _table, _heading)
command.params += [
    click.Option(["--set", "set"], multiple=True, metavar="NAME=VALUE", help="Any other option of fit, train or serve."),
    click.Option(["--assert", "assert_"], multiple=True, metavar="TEXT", help="Must hold: 'total_bytes < 75 GiB'."),
]
add(command, OUTPUT, "Output")

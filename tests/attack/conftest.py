"""What the attacks share: the command line in this process, a limit on its time, and a small model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attack_small import SMALL
from foretell.catalog import loader
from foretell.cli import main

KEYS = {"kind", "field", "value", "allowed", "where", "hint", "message"}


@dataclass(frozen=True)
class Ran:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> dict[str, Any]:
        """The error's object: alone on stderr, with its seven keys, in one printable line; nothing on stdout."""
        assert (self.code, self.out) == (2, ""), self.err
        made = json.loads(self.err)
        assert set(made) == {"error"}
        error: dict[str, Any] = made["error"]
        assert set(error) == KEYS
        assert error["message"].isprintable()
        assert len(error["message"]) < 1500
        return error

    @property
    def document(self) -> dict[str, Any]:
        assert self.err == ""
        made: dict[str, Any] = json.loads(self.out)
        return made


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line; five seconds are a hang."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        started = time.monotonic()
        code = main([str(argument) for argument in arguments])
        assert time.monotonic() - started < 5
        assert code in (0, 1, 2)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Write the small model with changes, and return its path."""

    def write(**changes: object) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(SMALL | changes))
        return str(path)

    return write


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Drop what a test registered."""
    yield
    loader._registered.clear()  # there is no way to unregister

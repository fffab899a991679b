"""What the tests of the command line share: a way to run it, and a small model of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from foretell.cli import main
from foretell.report.envelope import schema

SMALL = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1536,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of the answer, checked against its schema."""
        made: dict[str, Any] = json.loads(self.out)
        jsonschema.Draft202012Validator(schema(made["command"])).validate(made)
        return made

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The JSON object of the error."""
        made: dict[str, Any] = json.loads(self.err)["error"]
        return made


Cli = Callable[..., Ran]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run the command line in this process."""

    def run(*arguments: str) -> Ran:
        code = main(arguments)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ran(code, out, err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    """Write a config.json that differs from the small model in some keys; a key of None is left out."""

    def write(**changes: object) -> str:
        made = {key: value for key, value in (SMALL | changes).items() if value is not None}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(made))
        return str(path)

    return write

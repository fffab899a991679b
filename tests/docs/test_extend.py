"""docs/extend.md: its files are written, its commands are run, and each addition changes the answer."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foretell
from foretell.arch.readers import _registry
from foretell.catalog import loader
from foretell.cli import main
from foretell.operations.failure_rates import public_range
from foretell.operations.prices import purchase_or_raise, rent
from foretell.recipe.optimizers import optimizer
from foretell.recipe.profiles import profile

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
COMMANDS = [line for kind, _, text in BLOCKS if kind == "sh" for line in text.splitlines()]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reader's disk after the page: a catalog of one's own, an installed package, a model."""
    own, site = tmp_path / "catalog", tmp_path / "site"
    for _, name, text in BLOCKS:
        if name == "pyproject.toml":
            made = site / "shift-1.dist-info"
            made.mkdir(parents=True, exist_ok=True)
            points = tomllib.loads(text)["project"]["entry-points"]
            lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in held.items()) for group, held in points.items()]
            (made / "entry_points.txt").write_text("\n".join(lines))
            (made / "METADATA").write_text("Metadata-Version: 2.1\nName: shift\nVersion: 1\n")
        elif name:
            path = (site if name.endswith(".py") else tmp_path if "/" not in name else own) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("FORETELL_CATALOG", str(own))
    monkeypatch.setattr(loader, "_registered", {})
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    _registry.load_plugins.cache_clear()
    yield tmp_path
    _registry.load_plugins.cache_clear()
    _registry._READERS.pop("shiftformer", None)
    sys.modules.pop("my_shift", None)


def test_the_page_has_a_block_of_each_kind() -> None:
    folders = {name.split("/")[0] for _, name, _ in BLOCKS if "/" in name}
    assert folders == {"failures", "frameworks", "hardware", "models", "optimizers", "prices"}
    assert len(COMMANDS) == 5


@pytest.mark.parametrize(("name", "text"), [(name, text) for _, name, text in BLOCKS if name])
def test_each_block_is_short(name: str, text: str) -> None:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
    assert len(lines) < 20, name


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run_as_printed(followed: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert followed.is_dir()
    program, *arguments = command.split()
    assert program == "foretell"
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["verdict"] == "fits"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["fit", *arguments, "--json", "--no-advice"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["result"]
    return found


@pytest.mark.usefixtures("followed")
def test_the_gpu_is_the_one_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "my-decoder", "--gpu", "My GPU 48 GB")
    assert found["available_bytes"] == round(47.4 * 2**30)
    assert "my-gpu" in loader.ids("hardware")


@pytest.mark.usefixtures("followed")
def test_the_optimizer_keeps_one_byte_and_a_scale(capsys: pytest.CaptureFixture[str]) -> None:
    mine = answer(capsys, "my-decoder", "--gpu", "my-gpu", "--optimizer", "my-lion8")
    adam = answer(capsys, "my-decoder", "--gpu", "my-gpu")
    parameters = mine["parameters"]
    state = {name: found["breakdown"]["optimizer_state"] / parameters for name, found in (("m", mine), ("a", adam))}
    assert state["a"] == pytest.approx(12)  # fp32 master and two moments
    assert state["m"] == pytest.approx(4 + 1 + 4 / 256)
    assert optimizer("My_Lion8").bits == 8


@pytest.mark.usefixtures("followed")
def test_the_framework_differs_from_its_base_where_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    mine, base = profile("my-trainer"), profile("fsdp2")
    assert (mine.style.loss, mine.optimizer_impl, mine.sharding) == ("chunked", "fused", base.sharding)
    assert mine.formats["fp32"] == base.formats["fp32"]
    found = answer(capsys, "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--framework", "my-trainer")
    wide = answer(capsys, "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--framework", "fsdp2")
    assert found["breakdown"]["weights"] == pytest.approx(wide["breakdown"]["weights"] / 2)


@pytest.mark.usefixtures("followed")
def test_the_prices_are_those_of_the_file() -> None:
    today = dt.date(2026, 6, 1)
    assert rent("My GPU 48 GB", today=today).point == pytest.approx(1.2)
    assert rent("h100", kind="reserved", today=today).point == pytest.approx(2.2)
    bought = purchase_or_raise("my-gpu", today=today)
    assert (bought.low, bought.point, bought.high) == (6000, 6500, 8000)


@pytest.mark.usefixtures("followed")
def test_the_operator_is_counted_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "config.json", "--gpu", "my-gpu", "--seq-len", "1024")
    layer = 4 * 1024**2 + 3 * 4 * 1024**2 + 2 * 1024  # attention, gated MLP, two norms
    assert found["parameters"] == 12 * (layer + 1024) + 2 * 32000 * 1024 + 1024
    assert _registry.load_plugins() == ("shiftformer",)
    config = json.loads(Path("config.json").read_text())
    plain = foretell.load_model({**config, "model_type": "llama", "intermediate_size": 4096})
    assert found["parameters"] - plain.parameters == 12 * 1024


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("optimizers/bad.toml", 'id = "bad"\nsource = "x"', "lacks states"),
        ("optimizers/bad.toml", 'id = "bad"\nstates = -1\nsource = "x"', "states=-1"),
        ("optimizers/bad.toml", 'id = "bad"\nstates = 1\nbit = 8\nsource = "x"', "bit is not a known key"),
        ("frameworks/bad.toml", 'id = "bad"', "must name the profile"),
        ("frameworks/bad.toml", 'id = "bad"\nbase = "bad"', "leads back to itself"),
        ("frameworks/bad.toml", 'id = "bad"\nbase = "fsdp3"', "framework='fsdp3'"),
        ("frameworks/bad.toml", 'id = "bad"\nbase = "fsdp2"\nstyle = 3', "style=3 must be a table"),
        ("frameworks/bad.toml", 'id = "bad"\nbase = "fsdp2"\n[style]\nnorms = "x"', "style.norms"),
        ("frameworks/bad.toml", 'id = "bad"\nbase = "fsdp2"\n[formats.bf16]\nparam = "bf16"', "lacks grad"),
    ],
)
def test_a_mistake_in_a_file_is_one_clear_error(
    followed: Path, file: str, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (followed / "catalog" / file).write_text(text)
    option = "--optimizer" if "optimizers" in file else "--framework"
    assert main(["fit", "my-decoder", "--gpu", "my-gpu", option, "bad"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_mapping_can_be_registered_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_registered", {})
    foretell.register("optimizer", {"id": "two-moments", "states": 2, "source": "a test", "aliases": ["tm"]})
    foretell.register("framework", {"id": "own", "base": "deepspeed", "default_zero": 2})
    assert optimizer("tm").states == 2
    assert profile("own").default_zero == 2
    foretell.register("framework", {"id": "deeper", "base": "own"})
    assert profile("deeper").default_zero == 2


def test_a_plugin_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "broken-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (made / "entry_points.txt").write_text("[foretell.operators]\nbroken = no_such_module_here\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _registry.load_plugins.cache_clear()
    with pytest.raises(foretell.InputError, match=r"foretell.operators='broken' fails to load"):
        foretell.load_model({"model_type": "unheard-of", "hidden_size": 8})
    _registry.load_plugins.cache_clear()


def test_the_fleet_of_the_page_joins_the_range_of_plans(followed: Path) -> None:
    assert followed.is_dir()
    assert "my-fleet" in public_range().records

"""`foretell catalog` and `foretell validate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.catalog import loader

KINDS = [*loader.KINDS.values(), "model-types"]


@pytest.mark.parametrize("kind", [*KINDS, *loader.KINDS])
def test_every_kind_is_listed(cli: Any, kind: str) -> None:
    rows = cli("catalog", "list", kind, "--json").result["entries"]
    lines = [line for line in cli("catalog", "list", kind).out.splitlines() if not line.startswith(" ")]  # wrapped
    assert len(lines) == len(rows) + bool(rows) or not rows
    assert cli("catalog", "list", kind, "--quiet").out.split() == [row["id"] for row in rows]


def test_the_kinds_are_counted(cli: Any) -> None:
    counts = {row["id"]: row["entries"] for row in cli("catalog", "list", "--json").result["entries"]}
    assert list(counts) == KINDS
    assert counts["models"] >= 60
    assert counts["hardware"] >= 45
    assert counts["systems"] >= 15
    assert counts["grids"] >= 45


def test_a_list_of_grids_keeps_the_boundaries_apart(cli: Any) -> None:
    rows = {row["id"]: row for row in cli("catalog", "list", "grids", "--json").result["entries"]}
    assert rows["ireland"]["carbon_intensity_g_per_kwh"] is None
    assert rows["ireland"]["lifecycle_g_per_kwh"] == 290.805
    lines = cli("catalog", "list", "grids").out.splitlines()
    assert lines[0].split() == ["id", "operational", "g/kWh", "lifecycle", "g/kWh", "USD/kWh"]
    shown = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert shown["us-iowa"] == ["412.7", "(2024)", "-", "0.0691", "(2023)"]
    assert shown["poland"] == ["642.9", "(2024)", "661.9", "(2023)", "0.1890", "(2024)"]
    assert shown["ireland"] == ["-", "290.8", "(2023)", "0.2301", "(2024)"]


def test_an_entry_is_shown_with_its_sources(cli: Any) -> None:
    document = cli("catalog", "show", "H100", "--json").document
    assert document["result"]["id"] == "h100-sxm-80gb"
    assert document["result"]["entry"]["memory_bytes"] == 80 * 2**30
    assert document["sources"]
    text = cli("catalog", "show", "h100").out
    assert "memory_bytes: 85899345920  (80.00 GiB)" in text
    assert "source: " in text


def test_a_model_is_shown_with_its_counted_parameters(cli: Any) -> None:
    result = cli("catalog", "show", "llama-3-8b", "--json").result
    assert (result["kind"], result["counted_parameters"], result["layers"]) == ("model", 8_030_261_248, 32)


def test_what_is_held_as_code_is_shown_too(cli: Any) -> None:
    assert cli("catalog", "show", "adam", "--kind", "optimizers", "--json").result["id"] == "adamw"
    assert cli("catalog", "show", "megatron", "--json").result["id"] == "megatron-core"


def test_a_users_own_entry_is_listed_and_shown(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    (tmp_path / "optimizers").mkdir()
    (tmp_path / "optimizers" / "mine.toml").write_text('id = "mine"\nstates = 1\nsource = "our wiki"\n')
    assert "mine" in cli("catalog", "list", "optimizers", "--quiet").out.split()
    assert cli("catalog", "show", "mine", "--json").document["sources"] == ["our wiki"]


def test_prices_are_counted_and_shown_a_line_each(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["id"]: row for row in cli("catalog", "list", "prices", "--json").result["entries"]}
    assert (rows["lambda"]["offers"], rows["lambda"]["purchases"], rows["lambda"]["dates"]) == (12, 0, "2026")
    assert rows["purchase"]["dates"] == "2017-07 to 2026-09"
    text = cli("catalog", "show", "lambda").out
    assert "offers\n  h100-sxm-80gb, accelerators 8, instance gpu_8x_h100_sxm5, usd_per_hour 31.92," in text
    assert "{" not in text
    monkeypatch.setenv("FORETELL_CATALOG", str(tmp_path))
    (tmp_path / "prices").mkdir()
    (tmp_path / "prices" / "odd.toml").write_text('id = "odd"\noffers = [3]\npurchases = 4\n')
    odd = {row["id"]: row for row in cli("catalog", "list", "prices", "--json").result["entries"]}["odd"]
    assert (odd["offers"], odd["purchases"], odd["dates"]) == (0, 0, None)


@pytest.mark.parametrize("arguments", [("show", "h10"), ("list", "hardwares"), ("show", "h100", "--kind", "models")])
def test_what_is_not_there_is_met_with_near_names(cli: Any, arguments: tuple[str, ...]) -> None:
    ran = cli("catalog", *arguments, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["allowed"] is not None


def test_a_name_of_two_entries_is_met_with_both(cli: Any) -> None:
    ran = cli("catalog", "show", "us east 1", "--json")
    assert (ran.code, ran.error["allowed"]) == (2, ["us-south-carolina", "us-virginia"])


def test_validate_needs_a_file_of_rows(cli: Any, tmp_path: Path) -> None:
    for arguments, field in (
        (("memory",), "data"),
        (("memory", "--data", str(tmp_path / "none.jsonl")), "data"),
        (("weather", "--data", str(tmp_path)), "kind"),
        (("memory", "--data", str(tmp_path), "--max-mape", "-1"), "max_mape"),
    ):
        ran = cli("validate", *arguments, "--json")
        assert (ran.code, ran.error["field"]) == (2, field)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n')
    assert cli("validate", "memory", "--data", str(path)).code == 2
    path.write_text("nonsense\n")
    assert "rows.jsonl:1" in cli("validate", "memory", "--data", str(path)).err
    path.write_text("\n")
    assert "holds no rows" in cli("validate", "memory", "--data", str(path)).err


def test_validate_replays_and_keeps_a_bar(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = {"id": "a", "metric": "allocated", "measured": 100.0, "predicted": 110.0, "low": 90.0, "high": 120.0}
    skipped = dict.fromkeys(("measured", "predicted", "low", "high", "error_pct", "inside_interval"))
    rows = [
        scored | {"error_pct": 10.0, "inside_interval": True, "skipped": None},
        skipped | {"id": "b", "metric": "allocated", "skipped": "underspecified: no sequence length"},
    ]
    numbers = dict.fromkeys(("mape_pct", "median_ape_pct", "p90_ape_pct", "bias_pct", "coverage_pct"), 10.0)
    summary = {"n": 1, "skipped": 1, **numbers, "by_source": {}, "by_metric": {}, "by_framework": {}}
    monkeypatch.setattr("foretell.evidence.replay.replay", lambda *_: {"rows": rows, "summary": summary})
    path = tmp_path / "rows.jsonl"
    path.write_text("")
    base = ("validate", "memory", "--data", str(path))
    assert cli(*base, "--json").result["summary"]["n"] == 1
    assert cli(*base, "--max-mape", "10").code == 0
    assert cli(*base, "--max-mape", "9.9").code == 1
    text = cli(*base).out
    assert "+10.0 %  allocated    a" in text
    assert "1  underspecified: no sequence length" in text
    assert cli(*base, "--quiet").out.count("\n") == 1
    assert json.loads(cli(*base, "--json").out)["inputs"] == {"kind": "memory", "data": str(path), "max_mape": None}


def test_collectives_are_replayed(cli: Any, tmp_path: Path) -> None:
    row = {
        "id": "a",
        "collective": "all_reduce",
        "hardware": {"gpu": "h200-sxm", "gpus_per_node": 8},
        "ranks": 8,
        "size_bytes": 2**34,
        "measured": {"time_us": 62600.0},
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"id": "b", "collective": "gossip"}) + "\n")
    done = cli("validate", "collectives", "--data", str(path), "--json")
    assert (done.code, done.result["summary"]["n"], done.result["summary"]["skipped"]) == (0, 1, 1)
    text = cli("validate", "collectives", "--data", str(path)).out
    assert "gpu h200-sxm" in text
    assert "not-modelled: collective gossip" in text

"""The measurement script, rehearsed without a GPU: what it writes, what it survives, and that its runs can be traced."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from foretell.evidence.memory_replay import score
from foretell.evidence.memory_rows import read_row
from foretell.machine import load_hardware
from small_trace import transformer

TOOLS = Path(__file__).parents[2] / "tools"
SCHEMA = jsonschema.Draft202012Validator(json.loads(Path(__file__).with_name("schema_memory.json").read_text("utf-8")))
MIB, GIB = 2**20, 2**30
NAMES = ("llama-1b", "dry-fails", "dry-oom", "dry-hangs", "dry-dies")


def _module(name: str) -> Any:
    if str(TOOLS) not in sys.path:
        sys.path.insert(0, str(TOOLS))
    return importlib.import_module(name)


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "measure_memory.py"), *arguments]
    threads = {"OMP_NUM_THREADS": "1"}  # a tiny model is slower on many
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **threads, **environment})


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("measured")
    chosen = [word for name in NAMES for word in ("--only", name)]
    return folder, _run("--out", str(folder), "--dry", *chosen)


def _record(configuration: Any, **changes: Any) -> dict[str, Any]:
    """Return what a real run might have written."""
    reading = {"allocated": 5 * GIB, "active": 5 * GIB, "reserved": 6 * GIB, "requested": 5 * GIB - 512, "retries": 0}
    machine = {"gpu": "NVIDIA H200", "compute_capability": "9.0", "total_bytes": 140 * GIB, "driver": "580.1", "cuda": "13.0",
               "torch": "2.13.0+cu130", "cudnn": 91002}  # fmt: skip
    made = {
        "name": configuration.name,
        "configuration": json.loads(json.dumps(_module("_measure.configurations").as_data(configuration))),
        "outcome": "measured",
        "steps": [reading | {"allocated": 4 * GIB}, reading, reading],
        "built": reading | {"allocated": GIB, "active": GIB},
        "parameters": 1_000_000,
        "trainable": 1_000_000,
        "outside": {"managed_process": 7 * GIB},
        "machine": machine,
        "kernels": {"ScaledDotProductCudnnAttentionBackward0": 16},
        "dry": False,
        "when": "2026-12-01T10:00:00+00:00",
        "seconds": 10.0,
    }
    return made | changes


# -- configurations and rows --------------------------------------------------------------------------------


def test_every_configuration_makes_rows_that_foretell_reads() -> None:
    configurations, rows = _module("_measure.configurations").CONFIGURATIONS, _module("_measure.rows")
    assert len({c.name for c in configurations}) == len(configurations) >= 24
    for c in configurations:
        made = rows.rows_of(_record(c))
        assert [r["measured"]["metric"] for r in made] == (
            [] if c.limit_bytes else ["allocated", "active", "reserved", "process"]
        )
        for row in made:
            SCHEMA.validate(row)
            assert row["not_independent_of"] == [r["id"] for r in made if r is not row]
            ready = read_row(row)
            assert ready.run.recipe.micro_batch == c.micro_batch
            assert (ready.run.recipe.adapter is not None) == (c.lora_rank is not None)
        assert [r["measured"]["gib"] for r in made] in ([], [5, 5, 6, 7])


def test_a_run_out_of_memory_is_a_row_with_an_outcome() -> None:
    c = next(c for c in _module("_measure.configurations").CONFIGURATIONS if c.name == "llama-8b-oom")
    (row,) = _module("_measure.rows").rows_of(_record(c, outcome="oom", reason="CUDA out of memory", steps=[]))
    SCHEMA.validate(row)
    assert row["measured"] == {"outcome": "oom"}
    assert "CUDA out of memory" in row["notes"]
    assert score(row).verdict == "does_not_fit"


def test_names_of_gpus_are_those_of_the_catalog() -> None:
    rows = _module("_measure.rows")
    assert all(load_hardware(name).cuda_like for _, name in rows._GPUS if name)
    assert (rows.gpu_id("NVIDIA H200"), rows.gpu_id("NVIDIA GH200 480GB"), rows.gpu_id("NVIDIA GB200")) == (
        "h200-sxm",
        "gh200",
        "gb200",
    )
    assert doctest.testmod(rows) == (0, 1)
    assert rows.gpu_id("NVIDIA H200 NVL") is rows.gpu_id("NVIDIA Unheard-of") is None


def test_a_rows_notes_say_what_no_field_can() -> None:
    configurations = {c.name: c for c in _module("_measure.configurations").CONFIGURATIONS}
    for name, words in (
        ("llama-1b-expandable", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("llama-1b-reentrant", "re-entrant"),
        ("gpt2-accumulate", "clipped to norm 1"),
        ("resnet50-autocast", "channels_last"),
    ):
        first, *_, last = _module("_measure.rows").rows_of(_record(configurations[name]))
        assert words in first["notes"]
        assert "4.000, 5.000, 5.000 GiB" in first["notes"]
        assert "NVML, of the process" in last["notes"]


def test_what_measures_needs_neither_foretell_nor_what_foretell_needs() -> None:
    """A machine with a GPU may have torch alone."""
    for path in (TOOLS / "measure_memory.py", *TOOLS.glob("_measure/*.py")):
        found = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            for name in (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", ())]
            )
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        foreign = found - sys.stdlib_module_names - {"torch", "_measure", "pynvml"}
        assert foreign == ({"foretell", "msgspec"} if path.name == "predictions.py" else set()), path.name


# -- a rehearsal --------------------------------------------------------------------------------------------


def test_one_run_that_misbehaves_costs_the_others_nothing(rehearsed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ended = rehearsed
    assert ended.returncode == 0, ended.stderr
    records = {r["name"]: r for r in _lines(folder / "measurements.jsonl")}
    assert {name: records[name]["outcome"] for name in NAMES} == {
        "llama-1b": "measured", "dry-fails": "failed", "dry-oom": "oom", "dry-hangs": "timeout", "dry-dies": "failed",
    }  # fmt: skip
    assert records["dry-fails"]["reason"] == "RuntimeError: the model's code is wrong"
    assert any("misbehave" in line for line in records["dry-fails"]["traceback"])
    assert "out of memory" in records["dry-oom"]["reason"]
    assert records["dry-hangs"]["reason"] == "ended after 2 s"
    assert "SIGKILL" in records["dry-dies"]["reason"]
    assert records["llama-1b"]["parameters"] == 90_432
    assert [s["allocated"] for s in records["llama-1b"]["steps"]] == [9 * MIB, 10 * MIB, 11 * MIB]
    assert all(s["loss"] > 0 for s in records["llama-1b"]["steps"])
    assert sorted(p.name for p in folder.iterdir()) == ["comparison.json", "measurements.jsonl", "rows.jsonl", "snapshots"]


def test_rows_of_a_rehearsal_have_the_form_and_say_what_they_are(rehearsed: tuple[Path, Any]) -> None:
    rows = _lines(rehearsed[0] / "rows.jsonl")
    assert [r["measured"]["metric"] for r in rows] == ["allocated", "active", "reserved", "process"]
    for row in rows:
        SCHEMA.validate(row)
        assert row["source"]["title"].startswith("REHEARSAL")
        assert "gpu" not in row["hardware"]


def test_a_rehearsal_is_compared_with_trace_formulas_and_allocator(rehearsed: tuple[Path, Any]) -> None:
    folder, ended = rehearsed
    made = json.loads((folder / "comparison.json").read_text("utf-8"))
    run, *others = made["configurations"]
    assert [("left_out" in other) for other in others] == [True] * 4
    trace, formulas = run["trace"], run["analytic"]
    assert trace["outcome"] == formulas["outcome"] == "measured"
    assert trace["allocated"] == pytest.approx(formulas["allocated"], rel=0.01)
    for said in (trace, formulas):
        assert said["errors_pct"]["allocated"] == pytest.approx(100 * (said["allocated"] / (11 * MIB) - 1), abs=0.001)
    first, second, third = (step["allocated"] for step in trace["steps"])
    assert first < second == third <= trace["allocated"]
    assert trace["steps"][0]["errors_pct"]["allocated"] == pytest.approx(100 * (first / (9 * MIB) - 1), abs=0.001)
    assert run["allocator"]["peak_reserved"] == {"measured": 20 * MIB, "model": 20 * MIB, "error_pct": 0.0}
    assert run["allocator"]["followed"]["allocations"] == 3
    assert {g["side"] for g in run["allocator"]["one_sided"]} == {"measured", "predicted"}
    assert made["summary"]["eager trace allocated"]["runs"] == 1
    assert "allocator's model +0.00 %" in ended.stdout


def test_what_is_measured_is_not_measured_again(
    rehearsed: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(rehearsed[0], folder)
    module = _module("measure_memory")
    with (folder / "measurements.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": "context", "outcome": "measured", "dry": True, "seconds": 1.0}) + "\n")
    assert module.main(["--out", str(folder), "--dry", "--budget", "0.01"]) == 0
    told = capsys.readouterr().out
    records = _lines(folder / "measurements.jsonl")
    assert sum(r["name"] == "llama-1b" for r in records) == sum(r["name"] == "context" for r in records) == 1
    rest = [r for r in records if r["outcome"] == "left out"]
    assert {r["name"] for r in rest} == {c.name for c in _module("_measure.dry").DRY if c.library != "dry"} - {"llama-1b"}
    assert all("no time" in r["reason"] or "not installed" in r["reason"] for r in rest)
    assert "llama-1b-eager" in told
    with pytest.raises(SystemExit):
        module.main(["--out", str(folder)])
    assert "holds a rehearsal; the two do not mix" in capsys.readouterr().err


# -- comparing ----------------------------------------------------------------------------------------------


def test_a_folder_from_elsewhere_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another builder is traced; runs that cannot be compared say why, and do not stop the others."""
    configurations = _module("_measure.configurations")
    dry, real = {c.name: c for c in _module("_measure.dry").DRY}, {c.name: c for c in configurations.CONFIGURATIONS}
    unheard = _record(real["unet-sd1"])
    unheard["machine"]["gpu"] = "NVIDIA Unheard-of"
    records = [
        _record(dry["resnet50"], dry=True),
        _record(replace(dry["llama-1b"], micro_batch=3), dry=True),
        _record(dry["moe"], dry=True, name="moe-of-yore"),
        unheard,
    ]
    (tmp_path / "measurements.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    monkeypatch.setattr(configurations, "find_spec", lambda _name: None)
    made = _module("_measure.comparison").compare_folder(tmp_path)
    first, second, third, fourth = made["configurations"]
    assert first["trace"]["unknown_workspaces"]["aten::convolution"] == 3 * 12
    assert first["analytic"]["framework"] == "hf-trainer"
    assert second["left_out"] == "the configuration is another one than was measured"
    assert third["left_out"] == "there is no such configuration any more"
    assert fourth["analytic"]["left_out"] == "the GPU is not in the catalog"
    assert fourth["trace"]["left_out"] == "diffusers not installed here"
    assert made == json.loads((tmp_path / "comparison.json").read_text("utf-8"))


def test_under_a_limit_the_end_and_the_retries_are_compared() -> None:
    predictions, comparison = _module("_measure.predictions"), _module("_measure.comparison")
    c = replace(_module("_measure.dry").DRY[0], allocator="")
    recording, whole = transformer(4, 3, hidden=3 * MIB), load_hardware("h200-sxm")
    free, played = predictions.levels(recording, c, whole)
    assert (free["outcome"], free["verdict"]) == ("measured", "fits")
    assert max(step["reserved"] for step in free["steps"]) == free["reserved"] == played.peak_reserved.bytes
    assert free["process"] - free["reserved"] == round(predictions.context_bytes(whole))
    for less, outcome in ((0, "measured"), (free["allocated"] // 2, "oom")):
        limit = free["reserved"] - less
        said, _ = predictions.levels(recording, replace(c, limit_bytes=limit), whole)
        assert said["outcome"] == outcome
        line = {"name": "x", "compiled": False, "outcome": "oom", "limit": limit, "measured": {}, "retries": 2,
                "trace": said, "analytic": {"left_out": "a limit"}}  # fmt: skip
        ends = {"measured": "ran", "oom": "ran out"}[outcome]
        assert list(comparison._remarks(line)) == [f"ran out, foretold: {ends}", f"retries 2, foretold {said['retries']}"]


def test_without_foretell_the_folder_is_kept_for_elsewhere(rehearsed: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.delitem(sys.modules, "_measure.predictions", raising=False)
    monkeypatch.setitem(sys.modules, "msgspec", None)
    monkeypatch.delattr(_module("_measure"), "predictions", raising=False)
    assert _module("measure_memory").main(["--compare", str(rehearsed[0])]) == 1
    assert "run --compare on a copy" in capsys.readouterr().out


# -- time, libraries and the command line -------------------------------------------------------------------


def test_a_run_is_not_begun_without_the_time_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, c = _module("_measure.supervisor"), _module("_measure.dry").DRY[0]
    begun: list[str] = []

    def one(_self: Any, name: str, _usual: float, _configuration: Any) -> dict[str, str]:
        begun.append(name)
        return {"outcome": "measured"}

    monkeypatch.setattr(supervisor.Supervisor, "_one", one)
    keeper = supervisor.Supervisor(tmp_path, 20.0, dry=True)
    keeper.run(
        [replace(c, name="short", seconds=5), replace(c, name="long", seconds=25), replace(c, name="last", seconds=5)],
        context=False,
    )
    records = {r["name"]: r for r in supervisor.load(tmp_path)}
    assert begun == ["short", "last"]
    assert records["long"]["outcome"] == "left out"
    assert "it usually takes 25 s" in records["long"]["reason"]
    keeper.run([replace(c, name="short", seconds=25)], context=False)
    assert {r["name"]: r for r in supervisor.load(tmp_path)}["short"]["outcome"] == "measured", "what was measured stays known"


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    configurations = _module("_measure.configurations")
    table = {c.name: c for c in configurations.CONFIGURATIONS}
    monkeypatch.setattr(configurations, "find_spec", lambda _name: None)
    assert table["llama-1b"].missing() is None
    assert table["llama-8b-lora"].missing() is None
    assert table["unet-sd1"].missing() == "diffusers not installed"
    assert table["peft-llama-1b"].missing() == "transformers and peft not installed"


def test_a_childs_environment_has_its_own_allocator_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:128")
    table = {c.name: c for c in _module("_measure.configurations").CONFIGURATIONS}
    made = {name: _module("_measure.supervisor")._environment(table[name]) for name in ("llama-1b", "llama-1b-expandable")}
    assert made["llama-1b-expandable"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & made["llama-1b"].keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "x", "--only", "llama-2b"], "llama-2b: there is no such configuration; there are context, llama-1b"),
        (["--out", "x", "--budget", "0"], "--budget 0: must be above 0 seconds"),
        (["--compare", "nowhere"], "nothing was measured into nowhere"),
        (["--out", "/dev/null/x"], "Not a directory"),
        ([], "one of the arguments --out --compare --list is required"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        _module("measure_memory").main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_list_names_every_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert _module("measure_memory").main(["--list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == [c.name for c in _module("_measure.configurations").CONFIGURATIONS]


# -- the counters of a GPU ----------------------------------------------------------------------------------


class _Allocator:
    """Stands for ``torch.cuda``: peaks that fall at a reset and rise with every reading."""

    def __init__(self) -> None:
        self.level = 100 * MIB
        self.fraction: float | None = None
        self.actions: list[str] = []

    def stats(self) -> dict[str, int]:
        self.level += MIB
        peaks = {"allocated": 0, "active": 1, "reserved": 2, "requested": -1}
        return {f"{k}_bytes.all.peak": self.level + more * MIB for k, more in peaks.items()} | {"num_alloc_retries": 3}

    def dump(self, path: str) -> None:
        Path(path).write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        import torch

        cuda = torch.cuda
        about = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB)
        for name, value in (
            ("init", lambda: self.actions.append("init")),
            ("set_device", lambda _index: None),
            ("synchronize", lambda: None),
            ("get_device_properties", lambda _index: about),
            ("set_per_process_memory_fraction", lambda share, _index: setattr(self, "fraction", share)),
            ("reset_peak_memory_stats", lambda: self.actions.append("reset")),
            ("memory_stats", self.stats),
            ("memory_allocated", lambda: 50 * MIB),
            ("memory_reserved", lambda: 60 * MIB),
            ("mem_get_info", lambda: (139 * GIB, 140 * GIB)),
        ):
            patch.setattr(cuda, name, value)
        patch.setattr(cuda.memory, "_record_memory_history", lambda **given: self.actions.append(f"history {given}"))
        patch.setattr(cuda.memory, "_dump_snapshot", self.dump)
        patch.setattr(cuda.memory, "_snapshot", lambda: {"allocator_settings": {"expandable_segments": False, "list": [1]}})


SMI = """#!/bin/sh
echo "$@" >> "$0.log"
case "$*" in
  *query-gpu=memory.used*) if [ -f "$0.used" ]; then echo 1500; else echo 1000; touch "$0.used"; fi ;;
  *query-compute-apps*) echo "1, 700" ;;
  *driver_version*) echo 580.95.05 ;;
esac
"""


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Allocator:
    """Return ``torch.cuda`` as a GPU would have it, beside an ``nvidia-smi`` of our own."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SMI, "utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    made = _Allocator()
    made.install(monkeypatch)
    return made


def test_a_run_is_measured_with_the_gpus_counters(allocator: _Allocator, tmp_path: Path) -> None:
    training, counters, dry = _module("_measure.training"), _module("_measure.counters"), _module("_measure.dry")

    class OnCpu(counters.Cuda):  # type: ignore[misc, name-defined]
        device = "cpu"

    c = replace(next(c for c in dry.DRY if c.name == "vit-b16-autocast"), limit_bytes=70 * GIB)
    found = training.measure(c, OnCpu(), tmp_path / "snapshots" / "x.pickle.gz", 10_000)
    assert found["outcome"] == "measured"
    assert allocator.fraction == pytest.approx(0.5)
    assert allocator.actions[0] == "init"
    assert "'stacks': 'python'" in allocator.actions[1]
    assert allocator.actions.count("reset") == 3
    steps = found["steps"]
    assert [s["allocated"] for s in steps] == [102 * MIB, 103 * MIB, 104 * MIB]
    assert steps[0]["reserved"] - steps[0]["requested"] == 3 * MIB
    assert steps[0]["retries"] == 3
    assert found["outside"] == {"device_total": 140 * GIB, "device_used": GIB, "managed_before": 1000 * MIB,
                                "managed_used": 1500 * MIB, "managed_rise": 500 * MIB, "managed_process": 700 * MIB}  # fmt: skip
    assert _module("_measure.supervisor").process_bytes(found) == (700 * MIB, "NVML, of the process")
    assert found["machine"] | {"torch": ""} == {
        "gpu": "NVIDIA H200", "compute_capability": "9.0", "total_bytes": 140 * GIB, "driver": "580.95.05", "cuda": None,
        "cudnn": None, "allocator_settings": {"expandable_segments": False}, "torch": "",
    }  # fmt: skip
    assert found["snapshot"] == "snapshots/x.pickle.gz"
    assert [p.name for p in (tmp_path / "snapshots").iterdir()] == ["x.pickle.gz"]
    assert found["kernels"] != {}
    assert all("--id=3" in line for line in (tmp_path / "bin" / "nvidia-smi.log").read_text("utf-8").splitlines())


def test_a_snapshot_above_its_allowance_is_left_out(allocator: _Allocator, tmp_path: Path) -> None:
    counters, training = _module("_measure.counters").Cuda(), _module("_measure.training")
    found = training._keep(counters, tmp_path / "snapshots" / "x.pickle.gz", 10)
    assert found["snapshot"] is None
    assert "MiB left" in found["snapshot_left_out"]
    assert list((tmp_path / "snapshots").iterdir()) == []
    assert allocator.actions == ["history {'enabled': None}"]


@pytest.mark.usefixtures("allocator")
def test_the_end_of_memory_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    training, counters, dry = _module("_measure.training"), _module("_measure.counters"), _module("_measure.dry")

    def full(_configuration: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")

    monkeypatch.setattr(training, "job", full)
    monkeypatch.setattr(counters.Cuda, "device", "cpu")
    found = training.measure(dry.DRY[0], counters.Cuda(), None, 0)
    assert found["outcome"] == "oom"
    assert found["reason"] == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert found["steps"] == []
    assert found["end"]["reserved"] > 100 * MIB


def test_what_libraries_add_is_told_stage_by_stage() -> None:
    begun = time.monotonic()
    found = _module("_measure.context").context(_module("_measure.dry").Stub())
    assert time.monotonic() - begun < 20
    assert [s["stage"] for s in found["stages"]][:3] == ["context", "kernel", "matmul"]
    assert all(s["device_used"] > s["cached"] for s in found["stages"])
    assert len(found["attention"]) == 5
    assert all("Attention" in name for name in found["attention"].values() if name)
    predictions = _module("_measure.predictions")
    said = _module("_measure.comparison")._context({**found, "dry": True}, predictions)
    assert said["stages"][0]["outside"] == 400 * MIB
    assert said["assumed"] == round(predictions.context_bytes(load_hardware("h200-sxm")))

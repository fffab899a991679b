"""`foretell trace`: the command line, with one small job that is traced once."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foretell.trace import Recording, TraceRequest, record
from foretell.trace.events import load

pytest.importorskip("torch")

JOB = """
import torch
from torch import nn
from foretell.trace import Job


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=256, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.float().pow(2).mean()


def job():
    return Job(Net(), lambda: torch.randn(64, 256), optimizer=lambda p: torch.optim.AdamW(p))


def mapping():
    return {"model": torch.compile(Net()), "batch": torch.randn(64, 256)}


def wrong():
    return 3


def raises():
    raise ValueError("no such thing")


def masks():
    return {"model": nn.Linear(8, 8), "batch": torch.randn(4, 8), "loss": lambda m, x: m(x)[x > 0].sum()}


def forever():
    while True:
        pass


class Endless(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x):
        while True:
            x = self.cell(x)


def scans():
    return {"model": Endless(), "batch": torch.randn(4, 8)}


def dies():
    import os, signal
    os.kill(os.getpid(), signal.SIGSEGV)


def hungry():
    import numpy
    return [numpy.ones(2**27) for _ in range(8)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("jobs")
    (made / "jobs.py").write_text(JOB)
    return made


@pytest.fixture(scope="module")
def recording(folder: Path) -> Recording:
    return record(TraceRequest(target="jobs.py:job", folder=str(folder)))


@pytest.fixture(scope="module")
def saved(recording: Recording, folder: Path) -> str:
    path = folder / "recording.json"
    path.write_bytes(recording.dump())
    return str(path)


@pytest.fixture
def at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def test_a_trace_knows_weights_gradients_and_states_to_the_byte(recording: Recording) -> None:
    parameters = 4 * 3 * (2 * 256 + 256 * 1024 + 1024 + 1024 * 256 + 256)
    by: dict[str, int] = {}
    for storage in recording.storages:
        by[storage.category] = by.get(storage.category, 0) + storage.bytes
    assert by["parameter"] == parameters
    assert by["gradient"] == 2 * parameters  # made anew in each of two steps
    assert by["optimizer"] == 2 * parameters
    assert by["input"] == 2 * 64 * 256 * 4
    assert recording.about["shim"] == "stubs"
    assert recording.about["worker_peak_rss_bytes"] < 600 * 2**20


def test_a_recording_survives_its_file(recording: Recording) -> None:
    assert load(recording.dump(), "here").dump() == recording.dump()


def test_a_target_is_traced(cli: Any, at: Path) -> None:
    del at
    found = cli("trace", "jobs:job", "--gpu", "a100-80gb", "--json")
    assert found.code == 0
    result = found.result
    assert result["fits"]
    assert result["requested_bytes"] <= result["allocated_bytes"] <= result["reserved_bytes"] <= result["total_bytes"]
    assert sum(result["breakdown"].values()) == result["allocated_bytes"]
    assert result["interval_bytes"][0] < result["total_bytes"] < result["interval_bytes"][1]
    assert "jobs.py" in "".join(owner["line"] for owner in result["owners"])


def test_compiled_code_is_traced_as_written_and_says_so(cli: Any, at: Path) -> None:
    del at
    found = cli("trace", "jobs.py:mapping", "--json")
    assert any("torch.compile of Net: traced eagerly" in note for note in found.document["notes"])
    low, high = found.result["interval_bytes"]
    assert (high - low) / found.result["total_bytes"] > 0.2


def test_the_screen_names_the_peak_and_who_holds_it(cli: Any, saved: str) -> None:
    text = cli("trace", "--recording", saved).out
    assert "FITS" in text
    assert "the peak: " in text
    assert "blocks.*" in text
    assert max(map(len, text.splitlines())) <= 80


def test_files_are_written(cli: Any, saved: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "a.pickle", "b.json", "a.png")]
    options = [part for pair in zip(("--save", "--snapshot", "--chrome", "--plot"), paths, strict=True) for part in pair]
    assert cli("trace", "--recording", saved, "--quiet", *options).code == 0
    assert load(Path(paths[0]).read_bytes(), paths[0]).storages
    snapshot = pickle.loads(Path(paths[1]).read_bytes())  # noqa: S301  # our own
    assert snapshot["segments"]
    assert json.loads(Path(paths[2]).read_bytes())["traceEvents"]
    assert Path(paths[3]).read_bytes().startswith(b"\x89PNG")


def test_a_snapshot_of_the_same_run_compares_as_equal(cli: Any, saved: str, tmp_path: Path) -> None:
    path = str(tmp_path / "real.pickle")
    cli("trace", "--recording", saved, "--quiet", "--snapshot", path)
    found = cli("trace", "--recording", saved, "--compare", path, "--json").result["comparison"]
    for level in ("peak_allocated", "peak_requested", "peak_reserved"):
        assert found[level]["measured"] == found[level]["model"]
    assert "beside the real run" in cli("trace", "--recording", saved, "--compare", path).out


def test_out_of_memory_is_what_pytorch_would_print(cli: Any, saved: str, tmp_path: Path) -> None:
    gpu = tmp_path / "tiny.toml"
    text = 'id = "tiny"\nname = "Tiny"\nvendor = "NVIDIA"\nkind = "gpu"\ncompute_capability = "8.0"\nmemory_bytes = 200000000\n'
    gpu.write_text(text + "memory_bandwidth_bytes_per_s = 1e12\ncontext_bytes = 180000000\n[peak_flops]\nbf16 = 1e14\n")
    found = cli("trace", "--recording", saved, "--gpu", str(gpu), "--json")
    assert found.code == 1
    assert found.result["verdict"] == "does_not_fit"
    assert found.result["oom"]["message"].startswith("CUDA out of memory. Tried to allocate ")


def test_settings_of_the_allocator_count(cli: Any, saved: str) -> None:
    plain = cli("trace", "--recording", saved, "--json").result["reserved_bytes"]
    other = cli("trace", "--recording", saved, "--alloc-conf", "expandable_segments:True", "--json").result["reserved_bytes"]
    assert plain != other


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trace",), ("TARGET is missing", "--model")),
        (("trace", "jobs:job", "--model", "gpt2"), ("both given",)),
        (("trace", "jobs:job", "--micro-batch", "4"), ("--micro-batch", "TARGET's own code")),
        (("trace", "jobs"), ("module:callable",)),
        (("trace", "jobs.py:nothing"), ("is not in the module", "job")),
        (("trace", "missing.py:job"), ("is not a file",)),
        (("trace", "missing:job"), ("is no module",)),
        (("trace", "jobs.py:wrong"), ("must be a foretell.trace.Job",)),
        (("trace", "jobs.py:raises"), ("jobs.py:", "ValueError: no such thing")),
        (("trace", "jobs.py:masks"), ("aten::index", "--density")),
        (("trace", "jobs.py:forever", "--time-limit", "6"), ("takes longer", "--time-limit")),
        (
            ("trace", "jobs.py:scans", "--time-limit", "12"),
            ("takes longer", "while recording", "forward of step 0, in cell (", "jobs.py:", "--seq-len"),
        ),
        (("trace", "jobs.py:dies"), ("SIGSEGV",)),
        (("trace", "jobs.py:hungry", "--memory-limit", "1"), ("more memory", "--memory-limit")),
        (("trace", "--model", "gpt2", "--sharding", "fsdp2"), ("more than one GPU",)),
        (("trace", "--model", "gpt2", "--gpus", "8"), ("needs a sharding",)),
        (("trace", "--model", "gpt2", "--precision", "fp8"), ("precision='fp8'", "bf16-true")),
        (("trace", "--model", "gpt2", "--quantization", "nf4"), ("--lora-rank",)),
        (("trace", "--model", "gpt2", "--plot", "a.gif"), ("must end in", ".png")),
        (("trace", "--model", "gpt2", "--plot", "nowhere/a.png"), ("folder that does not exist",)),
        (("trace", "--model", "gpt2", "--alloc-conf", "backend:cudaMallocAsync"), ("cudaMallocAsync",)),
        (("trace", "--model", "timm:nothing_at_all"), ("timm",)),
        (("trace", "--model", "gpt2", "--gpu", "mi300x"), ("compute capability",)),
        (("trace", "--recording", "jobs.py"), ("is no recording",)),
        (("trace", "--recording", "gone.json"), ("not a file",)),
        (("trace", "jobs:job", "--steps", "0"), ("steps=0",)),
        (("trace", "jobs:job", "--skew", "0.5"), ("skew",)),
        (("trace", "jobs:job", "--density", "2"), ("density",)),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(cli: Any, at: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    del at
    found = cli(*arguments)
    assert found.code == 2
    assert found.out == ""
    assert found.err.startswith("error: ")
    for word in words:
        assert word in found.err


def test_a_malicious_snapshot_is_refused_unread(cli: Any, saved: str, tmp_path: Path) -> None:
    trap = tmp_path / "trap"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {trap}",)

    path = tmp_path / "bad.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": Payload()}))
    found = cli("trace", "--recording", saved, "--compare", str(path))
    assert found.code == 2
    assert "system" in found.err
    assert not trap.exists()


def test_an_interrupted_trace_leaves_nothing_behind(at: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "foretell", "trace", "jobs.py:forever"]
    with subprocess.Popen(command, cwd=at, env=environment, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not _workers(at) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _workers(at)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert list(tmp_path.iterdir()) == []
    assert not _workers(at)


def _workers(folder: Path) -> list[str]:
    """Workers that run in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                if b"foretell.trace.engine.worker" in command and (entry / "cwd").resolve() == folder.resolve():
                    found.append(entry.name)
            except OSError:
                continue
    return found


FAULTS = """
import torch
from torch import nn
from foretell.trace import Job

X = lambda: torch.randn(4, 8)
def model(): return nn.Linear(8, 8)
def mean(m, x): return m(x).mean()
def adam(p): return torch.optim.AdamW(p)

def loss_int(): return Job(model(), X, loss=lambda m, x: 3)
def loss_vector(): return Job(model(), X, loss=lambda m, x: m(x))
def loss_arguments(): return Job(model(), X, loss=lambda m: 3)
def optimizer_int(): return Job(model(), X, mean, optimizer=lambda p: 3)
def optimizer_other(): return Job(model(), X, mean, optimizer=adam(nn.Linear(2, 2).parameters()))
def accumulate(): return Job(model(), X, mean, accumulate=0)
def clip(): return Job(model(), X, mean, clip=float("nan"))
def autocast(): return Job(model(), X, mean, autocast="fp8")
def both(): return Job(model(), X, mean, step=lambda m, b, o: None)
def generator(): return Job(model(), (X() for _ in range(9)), mean)
def loader(): return Job(model(), torch.utils.data.DataLoader([1, 2]), mean)
def takes(x): return x
def shapes(): return Job(nn.Linear(3, 3), X, mean)
def leaves(): raise SystemExit("bye")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("loss_int", ("result of job.loss='int'", "scalar")),
        ("loss_vector", ("shape (4, 8)",)),
        ("loss_arguments", ("job.loss", "2 arguments")),
        ("optimizer_int", ("job.optimizer='int'",)),
        ("optimizer_other", ("no parameter of job.model",)),
        ("accumulate", ("job.accumulate=0",)),
        ("clip", ("job.clip='nan'",)),
        ("autocast", ("job.autocast='fp8'", "bfloat16")),
        ("both", ("job.step and job.loss",)),
        ("generator", ("job.batch='generator'", "next(iterator)")),
        ("loader", ("job.batch='DataLoader'",)),
        ("takes", ("takes", "0 arguments")),
        ("shapes", ("faults.py:", "reduction dim")),
        ("leaves", ("SystemExit: bye",)),
    ],
)
def test_a_job_that_cannot_be_run_is_told_by_its_field(cli: Any, at: Path, name: str, words: tuple[str, ...]) -> None:
    (at / "faults.py").write_text(FAULTS)
    found = cli("trace", f"faults.py:{name}")
    assert found.code == 2, found.err
    for word in words:
        assert word in found.err


ORDINARY = """
import torch
from torch import distributed, nn
from foretell.trace import Job


def job():
    torch.cuda.memory._record_memory_history()
    torch.cuda.nvtx.range_push("build")
    assert torch.cuda.memory_summary() == ""
    distributed.init_process_group("nccl")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    scaler = torch.amp.GradScaler("cuda")

    def step(model, batch, optimizer):
        scaler.scale(model(batch.pin_memory()).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert scaler.get_scale() == 65536.0

    return Job(model, torch.randn(4, 8), optimizer=torch.optim.SGD, step=step, autocast=torch.float16)
"""


def test_what_ordinary_scripts_call_is_there(cli: Any, at: Path) -> None:
    (at / "ordinary.py").write_text(ORDINARY)
    found = cli("trace", "ordinary.py:job", "--gpus", "2", "--json")
    assert found.code == 0, found.err
    assert found.result["traced"]["world"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "3"), ("steps", "--recording has already")),
        (("--micro-batch", "4"), ("micro_batch",)),
        (("--save", "recording.json"), ("is the file of --recording too",)),
        (("--plot", "a.png", "--snapshot", "a.png"), ("too",)),
    ],
)
def test_options_without_effect_are_refused(
    cli: Any, at: Path, saved: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    del at
    found = cli("trace", "--recording", saved, *options)
    assert found.code == 2
    for word in words:
        assert word in found.err


def test_a_recording_is_judged_on_its_own_gpu(cli: Any, at: Path) -> None:
    cli("trace", "jobs.py:job", "--gpu", "l4", "--save", str(at / "own.json"), "--quiet")
    assert cli("trace", "--recording", str(at / "own.json"), "--json").document["inputs"]["gpu"] == "l4"
    notes = cli("trace", "--recording", str(at / "own.json"), "--gpu", "h100", "--json").document["notes"]
    assert any("recorded for NVIDIA L4" in note for note in notes)


def test_a_terminated_trace_leaves_nothing_behind(at: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "foretell", "trace", "jobs.py:forever"]
    with subprocess.Popen(command, cwd=at, env=environment, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not _workers(at) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        assert process.wait(30) == 130
    assert list(tmp_path.iterdir()) == []
    assert not _workers(at)

"""What holds for the readers of all families: whose a file is, nothing is dropped, edits read back, garbage is refused."""

from __future__ import annotations

import random
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretell.cli._check_answer import answer
from foretell.cli._check_request import Given, options_of, same_run, training_request
from foretell.errors import ForetellError
from foretell.readers._registry import FAMILIES
from foretell.readers.read import COMMAND, read_texts
from read_samples import SAMPLES, Sample

IDS = [sample[0] for sample in SAMPLES]
TRAINS = [sample for sample in SAMPLES if sample[0] not in ("vllm", "vllm_recipes", "sglang", "trtllm")]
NAMED = {"accelerate": "llama-3-8b", "deepspeed": "llama-3-8b"}
"""Families whose files name no model."""


def test_every_family_has_a_sample() -> None:
    assert sorted(IDS) == sorted(FAMILIES)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_a_file_is_known_by_its_keys(sample: Sample) -> None:
    family, path, text = sample
    made = read_texts([(path, text)])
    assert made.family == family
    assert not made.unknown
    assert made.settings


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_value_is_accounted_for_once(sample: Sample) -> None:
    made = read_texts([(sample[1], sample[2])])
    for document in made.documents:
        assert not {id(row.node) for row in document.untouched()} - {
            id(document.at(row.key)) for row in (*made.neutral, *made.unmodelled, *made.unknown)
        }


def options(**more: Any) -> dict[str, Any]:
    """Options of check as the command line gives them."""
    names = ("gpu", "gpus", "model", "seq_len", "family", "root", "oom", "headroom")
    return (
        dict.fromkeys(names) | {"set": (), "online": False, "no_advice": False, "quiet": False, "allow_uncertain": False} | more
    )


def lines_edited(text: str, edits: list[dict[str, Any]]) -> str:
    """Make edits by hand, as a user would, from the last to the first."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda e: -e["line"]):
        if edit["old"]:
            start = edit["line"] - 1
            assert lines[start : start + len(edit["old"])] == edit["old"]
            lines[start : start + len(edit["old"])] = edit["new"]
        else:
            lines[edit["line"] : edit["line"]] = edit["new"]
    return "\n".join(lines)


@pytest.mark.parametrize("sample", TRAINS, ids=[sample[0] for sample in TRAINS])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_suggested_edit_reads_back_to_the_run_that_it_was_computed_for(
    sample: Sample, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, path, text = sample
    gpu = data.draw(st.sampled_from(["a100-sxm-40gb", "h100", "l40s", "rtx4090", "b200"]))
    monkeypatch.chdir(tmp_path)
    model = NAMED.get(family)
    # sequence and GPUs only where the files leave them open
    first = read_texts([(path, text)])
    more: dict[str, str] = {}
    if "seq_len" in first.needs or (model is not None and "seq_len" not in first.settings):
        more["seq_len"] = "2048"
    if "gpus" not in first.settings and family not in ("megatron", "trainer", "accelerate"):
        more["gpus"] = data.draw(st.sampled_from(["2", "4", "8"]))
    if path == "command line":
        checked = answer((), tuple(shlex.split(text)), options(gpu=gpu, model=model, **more), None)
        text = shlex.join(shlex.split(text))
    else:
        (tmp_path / path).write_text(text)
        checked = answer((path,), (), options(gpu=gpu, model=model, **more), None)
    for row in checked.result["suggestions"]:
        if not row["edits"]:
            continue
        edited = lines_edited(text, row["edits"])
        after = training_request(read_texts([(path, edited)]), Given(model, {"gpu": gpu, **more}))[0].launch
        flags: dict[str, str | bool] = {}
        words = row["flags"].split()
        for i, word in enumerate(words):
            if word.startswith("--"):
                alone = i + 1 == len(words) or words[i + 1].startswith("--")
                flags[word[2:].removeprefix("no-").replace("-", "_")] = not word.startswith("--no-") if alone else words[i + 1]
        wanted = training_request(first, Given(model, {"gpu": gpu, **more, **flags}))[0].launch
        assert same_run(after, wanted), (row["flags"], edited)


SERVES = [sample for sample in SAMPLES if sample[0] in ("vllm", "sglang", "trtllm")]


@pytest.mark.parametrize("gpu", ["rtx4090", "l4", "a100-sxm-40gb"])
@pytest.mark.parametrize("sample", SERVES, ids=[sample[0] for sample in SERVES])
def test_each_edit_of_a_server_reads_back_to_what_it_was_computed_for(sample: Sample, gpu: str) -> None:
    longer = sample[2].replace("16384", "131072").replace("tp 2", "tp 1").replace("tp_size 2", "tp_size 1")  # than fits
    text = shlex.join(shlex.split(longer))
    first = read_texts([(COMMAND, text)])
    rows = answer((), tuple(shlex.split(text)), options(gpu=gpu), None).result["suggestions"]
    for row in rows:
        if row["edits"]:
            words = row["flags"].split()
            flags = {name[2:].replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)}
            after = read_texts([(COMMAND, lines_edited(text, row["edits"]))])
            assert options_of(after, Given(None, {"gpu": gpu})) == options_of(first, Given(None, {"gpu": gpu, **flags}))
    if sample[0] == "vllm" and gpu != "a100-sxm-40gb":
        assert any(row["edits"] for row in rows)


def damaged(text: str, seed: int) -> str:
    """Damage a text: lines go, come twice, change places; values become what nobody expects."""
    rng = random.Random(seed)  # noqa: S311  # no secret
    lines = text.split("\n")
    strange = [
        "null",
        "[]",
        "{}",
        "-1",
        "0",
        "1e400",
        "nan",
        "'",
        "\u00e9\u2028",
        "${x.y}",
        "$(id)",
        "9" * 40,
        "!!python/name:os.system",
        "*a",
        "true",
        "auto",
    ]
    for _ in range(rng.randint(1, 4)):
        i = rng.randrange(len(lines))
        kind = rng.randrange(5)
        if kind == 0:
            del lines[i]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(i, lines[rng.randrange(len(lines))])
        elif kind == 2 and ":" in lines[i]:
            lines[i] = f"{lines[i].split(':')[0]}: {rng.choice(strange)}"
        elif kind == 3:
            words = lines[i].split(" ")
            words[rng.randrange(len(words))] = rng.choice(strange)
            lines[i] = " ".join(words)
        else:
            cut = rng.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:cut] + rng.choice(strange) + lines[i][cut:]
    return "\n".join(lines)


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused(sample: Sample, seed: int) -> None:
    family, path, text = sample
    start = time.perf_counter()
    try:
        made = read_texts([(path, damaged(text, seed))], family=family)
        if made.verb == "train":
            training_request(made, Given(NAMED.get(family), {"gpu": "h100"}))
    except ForetellError:
        pass
    assert time.perf_counter() - start < 2.0

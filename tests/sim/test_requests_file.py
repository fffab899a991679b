"""Trace files: every published form, and one clear error for what cannot be read."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.sim.arrivals import Request
from foretell.sim.requests_file import FileLengths, TraceFile, read_lengths, read_requests
from sim.sim_costs import dice


def write(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


FORMS = {
    "own": "arrival,input_tokens,output_tokens\n0.5,512,128\n2,1,1\n",
    "own, other order, cached": "output_tokens,cached_tokens,arrival,input_tokens\n128,0,0.5,512\n1,0,2.0,1\n",
    "own, milliseconds": "arrival_ms,input_tokens,output_tokens\n500,512,128\n2000,1,1\n",
    "byte order mark, CRLF, blank lines": "\ufeffarrival, input_tokens, output_tokens\r\n\r\n0.5,512,128\r\n2,1,1\r\n\r\n",
    "quotes": '"arrival","input_tokens","output_tokens"\n"0.5","512","128.0"\n2,1,1\n',
    "BurstGPT": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0.5,GPT-4,512,128,640,API log\n2,ChatGPT,1,1,2,Conversation log\n"
    ),
    "Vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,512,128\n2,1,1\n",
    "Splitwise": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,0.5,1,512,128\n1,2,0,2,1,1,1\n"
    ),
    "Mooncake": (
        '{"timestamp": 500, "input_length": 512, "output_length": 128, "hash_ids": [0, 1]}\n'
        '{"timestamp": 2000, "input_length": 1, "output_length": 1, "hash_ids": []}\n'
    ),
    "JSON Lines": (
        '{"arrival": 0.5, "prompt_len": 512, "output_len": 128}\n\n{"output_len": 1, "prompt_len": 1, "arrival": 2}\n'
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, FORMS[form])
    assert list(read_requests(path)) == [Request(0.5, 512, 128), Request(2.0, 1, 1)]
    assert list(read_lengths(path)) == [(512, 128, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600", 0.052),  # the 2023 trace: 100 ns
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:01:00.109930+00:00", 60.1),  # the 2024 trace
        ("2024-05-10T23:59:59Z", "2024-05-11T00:00:00.5Z", 1.5),
        ("2024-05-10 12:00:00+02:00", "2024-05-10 10:00:01+00:00", 1.0),
        ("1700223423.25", "1700223424.5", 1.25),  # Unix time
        ("1700223423", "1700223423", 0.0),
    ],
)
def test_dates_count_from_the_first(tmp_path: Path, first: str, second: str, gap: float) -> None:
    path = write(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},4808,10\n{second},3180,8\n")
    one, two = read_requests(path)
    assert (one.arrival_s, one.input_tokens, one.output_tokens) == (0.0, 4808, 10)
    assert two.arrival_s == pytest.approx(gap, abs=1e-9)


def test_speed_and_a_part_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, FORMS["own"])
    assert [r.arrival_s for r in TraceFile(path, speed=2.0).stream(0)] == [0.25, 1.0]
    assert list(TraceFile(path, requests=1).stream(0)) == [Request(0.5, 512, 128)]


def test_lengths_end_or_begin_anew(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt_len": 5, "output_len": 7}\n{"prompt_len": 6, "output_len": 8}\n', "lengths.jsonl")
    assert list(FileLengths(path).pairs(dice(0))) == [(5, 7, 0), (6, 8, 0)]
    again = FileLengths(path, repeat=True).pairs(dice(0))
    assert [next(again)[0] for _ in range(5)] == [5, 6, 5, 6, 5]


HEAD = "arrival,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "field", "line", "said"),
    [
        ("", "requests", None, "is empty"),
        ("\n\n", "requests", None, "is empty"),
        (HEAD, "requests", None, "header and no requests"),
        ("arrival,input_tokens\n0,1\n", "columns", 1, "missing: output_tokens"),
        ("1,2,3\n", "columns", 1, "missing: input_tokens, output_tokens"),
        ("input_tokens,output_tokens\n1,1\n", "requests", 2, "no arrival times"),
        ("arrival,input_tokens,prompt_len,output_tokens\n", "columns", 1, "both give input_tokens"),
        (HEAD + "1,5,5\n0.5,5,5\n", "arrival", 3, "Sort the file"),
        (HEAD + "-1,5,5\n", "arrival", 2, "is negative"),
        (HEAD + "nan,5,5\n", "arrival", 2, "is no time"),
        (HEAD + "inf,5,5\n", "arrival", 2, "is no time"),
        (HEAD + "1_0,5,5\n", "arrival", 2, "is no time"),
        (HEAD + "soon,5,5\n", "arrival", 2, "is no time"),
        (HEAD + "2023-02-30 00:00:00,5,5\n", "arrival", 2, "is no time"),
        (HEAD + ",5,5\n", "arrival", 2, "is missing"),
        (HEAD + "0,,5\n", "input_tokens", 2, "is missing"),
        (HEAD + "0,5\n", "output_tokens", 2, "is missing"),
        (HEAD + "0,5,5,5\n", "line", 2, "4 cells under a header of 3"),
        (HEAD + "0,five,5\n", "input_tokens", 2, "is no number of tokens"),
        (HEAD + "0,nan,5\n", "input_tokens", 2, "is no number of tokens"),
        (HEAD + "0,1.5,5\n", "input_tokens", 2, "is no number of tokens"),
        (HEAD + "0,-5,5\n", "input_tokens", 2, "is no number of tokens"),
        (HEAD + "0,5,0\n", "output_tokens", 2, "Leave out requests that made nothing"),
        (HEAD + "0,5,1000000001\n", "output_tokens", 2, "is no number of tokens"),
        ("arrival,input_tokens,output_tokens,cached_tokens\n0,5,5,5\n", "cached_tokens", 2, "leaves nothing"),
        (HEAD + '0,"5,5\n', "input_tokens", 2, "is no number of tokens"),
        (HEAD + '0,"5' + "\n5" * 100_000, "line", 65538, "is not CSV"),
        (HEAD + "0,5\r5,5\n", "line", 2, "is not CSV"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": true}\n', "output_tokens", 1, "is no number of tokens"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": NaN}\n', "output_tokens", 1, "is no number of tokens"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": []}\n', "output_tokens", 1, "is no number of tokens"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": null}\n', "output_tokens", 1, "is missing"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": 1}\n{"arrival": 1}\n', "input_tokens", 2, "is missing"),
        ('{"arrival": 0, "input_tokens": 5, "output_tokens": 1}\n[1]\n', "line", 2, "no JSON object"),
        ('{"arrival": 0, \n', "line", 1, "is not JSON"),
        ('{"a": ' * 100_000, "line", 1, "is not JSON"),
        ('{"arrival": 0, "arrival": 1, "input_tokens": 5, "output_tokens": 1}\n', "line", 1, "comes twice"),
        ('{"arrival": "1e400", "input_tokens": 5, "output_tokens": 1}\n', "arrival", 1, "is no time"),
        ('{"arrival": 1e999, "input_tokens": 5, "output_tokens": 1}\n', "arrival", 1, "is no time"),
        ('[{"id": "x", "conversations": []}]', "requests", 1, "one JSON array"),
        ('{"id": "x", "conversations": [{"from": "human", "value": "hi"}]}\n', "requests", 1, "without token counts"),
        ("x" * (2**20 + 1), "line", 1, "too long"),
        (HEAD + "0,5,5\n" + " " * (2**20 + 1), "line", 3, "too long"),
        (b"\x1f\x8b\x08\x00rest", "requests", None, "compressed"),
        (b"PK\x03\x04\x00\xff\xfe\n", "columns", 1, "are missing"),
    ],
)
def test_one_clear_error(tmp_path: Path, text: str | bytes, field: str, line: int | None, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=said) as raised:
        list(read_requests(path))
    assert raised.value.field == field
    assert raised.value.where == (str(path) if line is None else f"{path}:{line}")
    assert len(str(raised.value)) < 1500


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv", Path("/dev/null")):
        with pytest.raises(InputError, match="is not a file"):
            list(read_requests(path))


def test_a_long_file_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w") as out:
        out.write(HEAD)
        out.writelines(f"{i / 100},{1 + i % 4000},{1 + i % 500}\n" for i in range(60_000))
    tracemalloc.start()
    assert sum(1 for _ in read_requests(path)) == 60_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20

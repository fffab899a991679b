"""A pickle is read as data, whatever it asks for: nothing of it runs."""

from __future__ import annotations

import builtins
import os
import pickle
import pickletools
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.errors import ConfigError
from foretell.trace.restricted import _HANDLERS, LIMIT_DEPTH, read_pickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=30,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN, st.integers(3, 5))  # protocol 2 writes bytes by a call
def test_what_python_pickles_of_plain_data_is_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), "a") == value


def test_protocol_2_is_read_too() -> None:  # what torch's C++ writer uses
    value = {"segments": [{"address": 2**46, "stream": -1, "frames": [], "pool": (0, 0), "x": 0.5, "y": True, "z": None}]}
    assert read_pickle(pickle.dumps(value, 2), "a") == value


def test_what_was_one_object_stays_one() -> None:
    frames = [{"name": "mm"}]
    read = read_pickle(pickle.dumps({"a": frames, "b": frames}), "a")
    assert isinstance(read, dict)
    assert read["a"] is read["b"]


def test_a_file_name_that_is_no_utf8_does_not_hide_the_rest() -> None:
    assert read_pickle(b"\x80\x02X\x03\x00\x00\x00a\xffb.", "a") == "a\N{REPLACEMENT CHARACTER}b"


# -- nothing runs ---------------------------------------------------------------------------------------------


class _Does:
    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def payloads(path: Path) -> dict[str, tuple[_Does, str]]:
    text = str(path)
    return {
        "system": (_Does(os.system, f"touch {text}"), "system"),
        "open": (_Does(open, text, "w"), "open"),
        "eval": (_Does(builtins.eval, f"open({text!r}, 'w').close()"), "eval"),
        "exec": (_Does(builtins.exec, f"open({text!r}, 'w').close()"), "exec"),
        "popen": (_Does(subprocess.Popen, ["touch", text]), "Popen"),
    }


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["system", "open", "eval", "exec", "popen"])
def test_a_payload_is_refused_and_does_nothing(name: str, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "made"
    payload, called = payloads(path)[name]
    data = pickle.dumps(payload, protocol)
    with pytest.raises(ConfigError) as caught:
        read_pickle(data, "evil.pickle")
    message = str(caught.value)
    assert "GLOBAL" in message
    assert called in message
    assert "byte" in message
    assert message.startswith("evil.pickle")
    assert not path.exists()
    made = pickle.loads(data)  # noqa: S301  # the payload does work where it is let
    if name == "popen":
        made.wait()
    if name == "open":
        made.close()
    assert path.exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_payload_deep_in_a_snapshot_is_refused_at_its_byte(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "made"
    snapshot = {"segments": [], "device_traces": [[{"action": "alloc", "size": _Does(os.system, f"touch {path}")}]]}
    data = pickle.dumps(snapshot, protocol)
    at = next(p for op, _, p in pickletools.genops(data) if p is not None and "GLOBAL" in op.name)
    with pytest.raises(ConfigError, match=rf"system.*\(byte {at}\)"):
        read_pickle(data, "evil.pickle")
    assert not path.exists()


ALLOWED = {chr(code) for code in _HANDLERS} | set("hj.")


@pytest.mark.parametrize("op", [op for op in pickletools.opcodes if op.code not in ALLOWED], ids=lambda op: op.name)
def test_every_other_opcode_is_refused_by_name(op: pickletools.OpcodeInfo) -> None:
    before = b"\x80\x04\x8c\x02os\x8c\x06system"
    with pytest.raises(ConfigError, match=rf"opcode {op.name}\b.*byte {len(before)}\)"):
        read_pickle(before + op.code.encode("latin-1") + b"\n\n" + bytes(20) + b".", "a")


def test_the_allowed_opcodes_build_plain_data_only() -> None:
    names = {op.name for op in pickletools.opcodes if op.code in ALLOWED}
    running = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID"}
    assert not names & (running | {"EXT1", "EXT2", "EXT4"})
    assert len(names) == len(ALLOWED)


def test_nothing_is_imported() -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(ConfigError, match="GLOBAL for 'antigravity fly'"):
        read_pickle(b"\x80\x02cantigravity\nfly\n.", "a")
    assert "antigravity" not in sys.modules


# -- nothing grows or hangs -----------------------------------------------------------------------------------


def fails_quickly(data: bytes, match: str, **limits: int) -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError, match=match):
        read_pickle(data, "a", **limits)
    assert time.monotonic() - start < 5


def test_bombs_are_refused() -> None:
    fails_quickly(bytes(100), "larger than 99 bytes", limit_bytes=99)
    fails_quickly(b"\x80\x04" + b"]" * 50_000 + b"a" * 49_999 + b".", f"deeper than {LIMIT_DEPTH}")
    fails_quickly(b"\x80\x04N" + b"\x85" * 200_000 + b".", f"deeper than {LIMIT_DEPTH}")
    fails_quickly(b"\x80\x04" + b"(" * 200_000 + b".", f"deeper than {LIMIT_DEPTH}")
    fails_quickly(b"\x80\x04(" + b"]" * 2000 + b"t.", "more than 1000 objects", limit_objects=1000)
    fails_quickly(b"\x80\x04]" + b"\x94" * 2000 + b".", "more than 1000 objects", limit_objects=1000)
    fails_quickly(b"\x80\x04X\xff\xff\xff\xff.", "in the middle of 4294967295 bytes")
    fails_quickly(b"\x80\x04\x8d" + b"\xff" * 8 + b".", "in the middle of 18446744073709551615 bytes")
    fails_quickly(b"\x80\x04\x95" + b"\xff" * 8 + b".", "frame")
    fails_quickly(b"\x80\x04\x8b\xff\xff\xff\x7f.", "LONG4")


def test_a_nesting_that_is_shallow_is_read_and_one_level_more_is_not() -> None:
    def nested(levels: int) -> bytes:
        return b"\x80\x04" + b"]" * levels + b"a" * (levels - 1) + b"."

    assert isinstance(read_pickle(nested(LIMIT_DEPTH), "a"), list)
    fails_quickly(nested(LIMIT_DEPTH + 1), "deeper")


@pytest.mark.parametrize(
    "data",
    [b"\x80\x04]\x94h\x00a.", b"\x80\x04}\x94\x8c\x01ah\x00s.", b"\x80\x04]\x94(h\x00h\x00e.", b"\x80\x04]\x94]\x94h\x00aa."],
)
def test_what_contains_itself_is_refused(data: bytes) -> None:
    fails_quickly(data, "contains itself")


def test_shared_lists_are_not_walked_again_for_every_mention() -> None:
    doubling = b"".join(b"]\x94(" + bytes([ord("h"), i]) * 2 + b"e" for i in range(50))  # 2^50 lists, written out
    start = time.monotonic()
    value = read_pickle(b"\x80\x04](" + b"]\x94" + doubling + b"e.", "a")
    assert time.monotonic() - start < 5
    assert isinstance(value, list)
    assert len(value) == 51


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "ends too early"),
        (b"\x80\x04", "ends too early"),
        (b"\x80\x04.", "one value"),
        (b"\x80\x04NN.", "one value"),
        (b"\x80\x04(N.", "one value"),
        (b"\x80\x04N.rubbish", "goes on after its end"),
        (b"\x80\x04h\x07.", "not remembered"),
        (b"\x80\x04Na.", "takes more|no list"),
        (b"\x80\x04NNa.", "no list"),
        (b"\x80\x04](NNu.", "no dictionary"),
        (b"\x80\x04}(Nu.", "no dictionary"),
        (b"\x80\x04}K\x01Ns.", "no string"),
        (b"\x80\x04}]Ns.", "no string"),
        (b"\x80\x04u.", "takes more"),
        (b"\x80\x04\x87.", "takes more"),
        (b"\x80\x09N.", "protocol 9"),
        (b"PK\x03\x04rest", "ZIP archive"),
        (b"\x1f\x8brest", "gzip"),
        (b"<html>", "no pickle"),
        (b'{"segments": []}', "no pickle"),
    ],
)
def test_what_is_no_pickle_is_said_to_be_none(data: bytes, match: str) -> None:
    fails_quickly(data, match)


def test_bytes_of_nothing_may_follow() -> None:
    assert read_pickle(pickle.dumps([1]) + bytes(3), "a") == [1]  # torch.cuda._memory_viz pads like this


def test_any_damage_is_an_error_of_ours_or_other_data() -> None:
    whole = pickle.dumps({"segments": [{"address": 2**40, "blocks": [(1, 2.5, None, True)]}], "x": "y" * 300})
    for end in range(len(whole)):
        with pytest.raises(ConfigError):
            read_pickle(whole[:end], "a")
    chance = random.Random(7)  # noqa: S311  # damage, no secrets
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read_pickle(bytes(damaged), "a")
        except ConfigError:
            continue

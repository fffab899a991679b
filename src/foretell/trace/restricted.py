"""Reads pickles as data: an interpreter of those opcodes alone that build plain Python values.

Python's ``pickle`` runs what a file tells it to run.  The memory snapshots of PyTorch need none of that: their dictionaries,
lists, strings and numbers are written with the few opcodes below, by ``torch.cuda.memory._dump_snapshot`` (Python's own
pickler) as well as by the C++ writer (torch ``csrc/cuda/memory_snapshot.cpp``: protocol 2, without the type tags of
``torch.jit``).  Every other opcode is refused by name before anything has been done with it; nothing is ever imported or
called.  Opcodes and their arguments: CPython ``Lib/pickletools.py``.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, cast

from foretell.errors import ConfigError

__all__ = ["LIMIT_BYTES", "LIMIT_DEPTH", "LIMIT_OBJECTS", "read_pickle"]

LIMIT_BYTES: Final = 1 << 29
"""512 MiB: a snapshot of a million events with their stacks takes about a third of that."""
LIMIT_OBJECTS: Final = 20_000_000
"""Containers and remembered values. One byte of a pickle can ask for about 100 bytes of memory: at most 2 GiB in all."""
LIMIT_DEPTH: Final = 64
"""Containers within one another; a snapshot has 6."""

Plain = dict[str, Any] | list[Any] | tuple[Any, ...] | str | bytes | int | float | bool | None
"""And whatever these contain is of these, too."""

_KNOWN: Final = {ord(op.code): op for op in pickletools.opcodes}
_SHOWN_NAME: Final = 200
_ARCHIVES: Final = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
}
_U16, _U32, _U64, _I32, _F64 = (struct.Struct(form) for form in ("<H", "<I", "<Q", "<i", ">d"))
_HINT: Final = "A snapshot is what torch.cuda.memory._dump_snapshot writes."
_EXECUTES: Final = "builds objects by running code, which a snapshot never needs and foretell never does"


class _Reader:
    """The pickle machine's state: data, place, stack, marks and memo."""

    __slots__ = ("data", "limit_objects", "marks", "memo", "objects", "pos", "stack", "where")

    def __init__(self, data: bytes, where: str, limit_objects: int) -> None:
        self.data = data
        self.where = where
        self.pos = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.objects = 0
        self.limit_objects = limit_objects

    def fail(self, problem: str, at: int, *, hint: str | None = None) -> NoReturn:
        raise ConfigError(f"{problem} (byte {at})", where=self.where, hint=hint)

    def run(self) -> Any:
        """Return the value that the pickle describes."""
        data, stack, handlers = self.data, self.stack, _HANDLERS
        get = self.memo.__getitem__
        start = 0
        try:
            while True:
                start = self.pos
                op = data[start]
                if op == _BINGET:  # these two are nine tenths of a snapshot
                    stack.append(get(data[start + 1]))
                    self.pos = start + 2
                elif op == _LONG_BINGET:
                    stack.append(get(_U32.unpack_from(data, start + 1)[0]))
                    self.pos = start + 5
                elif op == _STOP:
                    self.pos = start + 1
                    break
                else:
                    self.pos = start + 1
                    handler = handlers.get(op)
                    if handler is None:
                        self.refuse(op, start)
                    handler(self)
        except (IndexError, struct.error):
            self.fail("ends too early or takes more from its stack than is there", start)
        except KeyError:
            self.fail("refers to a value that was not remembered", start)
        if len(stack) != 1 or self.marks:
            self.fail("does not end with one value", start)
        if data.count(0, self.pos) != len(data) - self.pos:
            self.fail("goes on after its end", self.pos)
        return stack[0]

    def refuse(self, op: int, at: int) -> NoReturn:
        """Name the opcode that is not allowed, and the global that it wants if there is one."""
        known = _KNOWN.get(op)
        if known is None:
            self.fail(f"is no pickle: there is no opcode {op:#04x}", at, hint=_HINT)
        name = known.name
        text = f"has the opcode {name}"
        if name in ("GLOBAL", "INST"):
            text += f" for {' '.join(self.line(n) for n in range(2))!r}"
        elif name == "STACK_GLOBAL":
            text += f" for {' '.join(str(part)[:_SHOWN_NAME] for part in self.stack[-2:])!r}"
        elif name == "PERSID":
            text += f" for {self.line(0)!r}"
        elif name in _PLAIN_BUT_OLD:
            self.fail(f"{text}, which no snapshot has", at, hint=_HINT)
        self.fail(f"{text}: it {_EXECUTES}", at)

    def line(self, skip: int) -> str:
        """Return a line of the text after the opcode."""
        lines = self.data[self.pos : self.pos + 2 * _SHOWN_NAME].split(b"\n")
        return lines[skip][:_SHOWN_NAME].decode("utf-8", "replace") if skip < len(lines) else ""

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        at = self.pos
        self.pos = at + count
        if self.pos > len(self.data):
            self.fail(f"ends in the middle of {count} bytes", at)
        return self.data[at : self.pos]

    def number(self, form: struct.Struct) -> Any:
        at = self.pos
        self.pos = at + form.size
        return form.unpack_from(self.data, at)[0]

    def count(self) -> None:
        """Count one object more."""
        self.objects += 1
        if self.objects > self.limit_objects:
            self.fail(f"holds more than {self.limit_objects} objects", self.pos)

    def new(self, value: Any) -> None:
        """Push a new container."""
        self.count()
        self.stack.append(value)

    def remember(self, key: int) -> None:
        self.count()
        self.memo[key] = self.stack[-1]

    def mark(self) -> None:
        if len(self.marks) > LIMIT_DEPTH:
            self.fail(f"nests deeper than {LIMIT_DEPTH} levels", self.pos)
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        """Take what lies above the last mark."""
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def text(self, count: int) -> None:
        # names of files may be anything; what is no UTF-8 must not make the rest unreadable
        self.stack.append(self.take(count).decode("utf-8", "replace"))

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            self.fail("appends to what is no list", self.pos)
        target.extend(items)

    def set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            self.fail("sets keys of what is no dictionary", self.pos)
        for i in range(0, len(items), 2):
            if type(items[i]) is not str:
                self.fail("has a dictionary's key that is no string", self.pos)
            target[items[i]] = items[i + 1]

    def tuple_of(self, count: int) -> None:
        stack = self.stack
        if count > len(stack):
            raise IndexError
        items = tuple(stack[-count:])
        del stack[-count:]
        self.new(items)

    def proto(self) -> None:
        version = self.data[self.pos]
        self.pos += 1
        if not 2 <= version <= 5:
            self.fail(f"is of pickle protocol {version}, not 2 to 5", self.pos - 1)

    def frame(self) -> None:
        size = self.number(_U64)
        if size > len(self.data) - self.pos:
            self.fail(f"ends in the middle of a frame of {size} bytes", self.pos)

    def integer(self) -> None:
        count = self.data[self.pos]
        self.pos += 1
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))

    def append_one(self) -> None:
        self.append([self.stack.pop()])

    def set_one(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set([key, value])


_BINGET, _LONG_BINGET, _STOP = ord("h"), ord("j"), ord(".")
_HANDLERS: Final[dict[int, Callable[[_Reader], None]]] = {
    0x80: _Reader.proto,
    0x95: _Reader.frame,
    ord("("): _Reader.mark,
    ord("}"): lambda r: r.new({}),
    ord("]"): lambda r: r.new([]),
    ord(")"): lambda r: r.stack.append(()),
    ord("t"): lambda r: r.new(tuple(r.since_mark())),
    0x85: lambda r: r.tuple_of(1),
    0x86: lambda r: r.tuple_of(2),
    0x87: lambda r: r.tuple_of(3),
    ord("l"): lambda r: r.new(r.since_mark()),
    ord("a"): _Reader.append_one,
    ord("e"): lambda r: r.append(r.since_mark()),
    ord("s"): _Reader.set_one,
    ord("u"): lambda r: r.set(r.since_mark()),
    0x94: lambda r: r.remember(len(r.memo)),
    ord("q"): lambda r: r.remember(r.take(1)[0]),
    ord("r"): lambda r: r.remember(r.number(_U32)),
    ord("K"): lambda r: r.stack.append(r.take(1)[0]),
    ord("M"): lambda r: r.stack.append(r.number(_U16)),
    ord("J"): lambda r: r.stack.append(r.number(_I32)),
    0x8A: _Reader.integer,
    ord("G"): lambda r: r.stack.append(r.number(_F64)),
    ord("N"): lambda r: r.stack.append(None),
    0x88: lambda r: r.stack.append(True),
    0x89: lambda r: r.stack.append(False),
    0x8C: lambda r: r.text(r.take(1)[0]),
    ord("X"): lambda r: r.text(r.number(_U32)),
    0x8D: lambda r: r.text(r.number(_U64)),
    ord("C"): lambda r: r.stack.append(r.take(r.take(1)[0])),
    ord("B"): lambda r: r.stack.append(r.take(r.number(_U32))),
    0x8E: lambda r: r.stack.append(r.take(r.number(_U64))),
}
_PLAIN_BUT_OLD: Final = frozenset(
    (
        *("INT", "LONG", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "FLOAT", "DICT", "PUT", "GET"),
        *("POP", "POP_MARK", "DUP", "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
    )
)
"""They run nothing, but what they write is never in a snapshot: text of protocol 0, sets, buffers, very large numbers."""


def read_pickle(data: bytes, where: str, *, limit_bytes: int = LIMIT_BYTES, limit_objects: int = LIMIT_OBJECTS) -> Plain:
    """Return the plain data that a pickle holds; dictionaries have strings for keys, and nothing contains itself.

    ``where`` names the file in errors.  Memory: at most about 100 bytes for each of ``limit_objects`` and the file's strings.

    Raises:
        ConfigError: larger, deeper or longer than allowed; no pickle; any opcode that could run something (named, with the
            global that it asks for and its byte).

    """
    if len(data) > limit_bytes:
        raise ConfigError(f"is larger than {limit_bytes} bytes", field="size", value=len(data), where=where)
    packed = next((name for magic, name in _ARCHIVES.items() if data.startswith(magic)), None)
    if packed is not None:
        raise ConfigError(f"is {packed}, no pickle", where=where, hint=_HINT)
    value = _Reader(data, where, limit_objects).run()
    _check_nesting(value, where)
    return cast("Plain", value)


def _check_nesting(root: Any, where: str) -> None:
    """Refuse a value that contains itself or nests too deep: whoever walks through it later would not return.

    A walk with its own stack, and over every container once, however often it is referred to.
    """
    if not isinstance(root, dict | list | tuple):
        return
    height: dict[int, int] = {id(root): 0}  # 0: still open
    path: list[tuple[Any, Iterator[Any]]] = [(root, _children(root))]
    tallest = [0]
    while path:
        node, children = path[-1]
        for child in children:
            seen = height.get(id(child))
            if seen == 0:
                raise ConfigError("holds a container that contains itself", where=where)
            if seen is not None:
                tallest[-1] = max(tallest[-1], seen)
                continue
            height[id(child)] = 0
            path.append((child, _children(child)))
            tallest.append(0)
            break
        else:
            path.pop()
            own = tallest.pop() + 1
            height[id(node)] = own
            if tallest:
                tallest[-1] = max(tallest[-1], own)
        if len(path) > LIMIT_DEPTH or (tallest and tallest[-1] > LIMIT_DEPTH):
            raise ConfigError(f"nests deeper than {LIMIT_DEPTH} levels", where=where)


def _children(node: Any) -> Iterator[Any]:
    """Yield the containers that stand directly in a container."""
    values = node.values() if type(node) is dict else node
    return (v for v in values if type(v) in _CONTAINERS)


_CONTAINERS: Final = frozenset((dict, list, tuple))

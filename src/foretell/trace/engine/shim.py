"""CUDA code paths on a build of torch without CUDA, so that fake tensors of device ``cuda`` run forward and backward.

A CPU build of torch refuses such tensors in three places: it has no device guard for CUDA, ``at::getAccelerator()`` finds none
(the autograd engine asserts that there is one), and a handful of operators lack a CUDA kernel, so that they decompose
into others.  :func:`install` fills these places for the life of the process with objects that do nothing:

* a guard whose every virtual function is a stub that returns ``{1, 0}``: the device type CUDA, device 0, default stream,
  one device; nothing of it depends on the layout of the interface but ``isStreamCapturing``, which must say no;
* a copy of the CUDA hooks' table of functions in which ``isBuilt`` says yes;
* CUDA kernels that never run (fake tensors are answered before a kernel is called).

The tables are read from the headers in torch's own wheel.  Nothing else in foretell knows that this exists.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
from pathlib import Path
from typing import Any

import torch

__all__ = ["TESTED", "ShimError", "install"]

TESTED = ("2.13.0",)
"""Versions of torch, without the build's suffix, with which the test suite was run."""

_GUARD = "c10/core/impl/DeviceGuardImplInterface.h"
_HOOKS = "ATen/detail/AcceleratorHooksInterface.h"
_CUDA = 1  # c10::DeviceType::CUDA
_TABLE = 160
"""Entries copied of a table of virtual functions: more than any of the two has."""
_WITHOUT_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators with a CUDA kernel beside a composite one (found by comparing the dispatch tables of both builds of 2.13)."""

_STUBS = {
    # machine -> (return {1, 0}, return 0)
    "x86_64": (bytes.fromhex("b80100000031d2c3"), bytes.fromhex("31c0c3")),
    "aarch64": (bytes.fromhex("200080d2010080d2c0035fd6"), bytes.fromhex("000080d2c0035fd6")),
}
_kept: list[Any] = []


class ShimError(Exception):
    """The CUDA code paths cannot be had on this machine or with this build; the message says why."""


def install() -> None:
    """Give this process the CUDA code paths; they stay until it ends.

    Raises:
        ShimError: another processor, no executable memory, or a build of torch that is laid out otherwise.

    """
    try:
        _install_guard()
        _install_hooks()
        _install_kernels()
    except (OSError, AttributeError, KeyError, ValueError) as error:
        raise ShimError(f"{type(error).__name__}: {error}") from error


def _keep(*things: Any) -> None:
    """Let things live for ever: torch still points at them when the interpreter has gone."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
        _kept.append(thing)


def _slots(header: str) -> dict[str, int]:
    """Return the place of each virtual function in an interface's table, from the header in the wheel (Itanium C++ ABI)."""
    text = (Path(torch.__file__).parent / "include" / header).read_text("utf-8")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    slots: dict[str, int] = {}
    at = 0
    for name in re.findall(r"\bvirtual\s+[^;{]*?(~?\w+)\s*\(", text):
        if name.startswith("~"):
            at += 2  # complete and deleting destructor
        else:
            slots[name] = at
            at += 1
    return slots


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _install_guard() -> None:
    """Register a guard of stubs for CUDA."""
    machine = platform.machine()
    if machine not in _STUBS:
        raise ValueError(f"no stub for the processor {machine}")
    yes, no = _STUBS[machine]
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(yes.ljust(64, b"\0") + no)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    table = (ctypes.c_void_p * _TABLE)(*[address] * _TABLE)
    capturing = _slots(_GUARD).get("isStreamCapturing")
    if capturing is not None:
        table[capturing] = address + 64
    guard = (ctypes.c_void_p * 2)(ctypes.addressof(table), 0)
    _keep(page, table, guard)
    register = _library("libc10.so")._ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE
    register.argtypes, register.restype = [ctypes.c_int8, ctypes.c_void_p], None
    register(_CUDA, ctypes.addressof(guard))


def _install_hooks() -> None:
    """Let the CUDA hooks say that CUDA is built and that no context exists."""
    get = _library("libtorch_cpu.so")._ZN2at6detail12getCUDAHooksEv
    get.argtypes, get.restype = [], ctypes.c_void_p
    pointer = ctypes.c_void_p.from_address(get())
    head = 2  # offset to top, type information
    size = ctypes.sizeof(ctypes.c_void_p)
    if pointer.value is None:
        raise ValueError("torch has no CUDA hooks")
    table = (ctypes.c_void_p * (_TABLE + head))()
    ctypes.memmove(table, pointer.value - head * size, ctypes.sizeof(table))
    slots = _slots(_HOOKS)
    table[head + slots["isBuilt"]] = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value  # always 1
    table[head + slots["hasPrimaryContext"]] = table[head + slots["isAvailable"]]  # false by default
    _keep(table)
    pointer.value = ctypes.addressof(table) + head * size


def _install_kernels() -> None:
    """Register the CUDA kernels whose absence makes an operator decompose."""
    library = torch.library.Library("aten", "IMPL")
    _keep(library)
    for name in _WITHOUT_KERNEL:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            library.impl(name, _never, "CUDA")


def _never(*_args: Any, **_kwargs: Any) -> None:
    raise AssertionError("a fake tensor reached a kernel")

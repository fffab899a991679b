"""The package's own surface: what importing costs, and what it exports."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

import foretell as ft


def test_import_brings_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import foretell; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['foretell']"


@pytest.mark.parametrize("name", [name for name in ft.__all__ if name != "__version__"])
def test_each_public_name_is_found(name: str) -> None:
    value = getattr(ft, name)
    assert value is getattr(ft, name)
    assert name in dir(ft)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ft.nothing


def test_all_lists_every_lazy_name() -> None:
    assert set(ft.__all__) == {*ft._MODULE_OF, "__version__"}
    assert all(importlib.util.find_spec(module) for module in ft._HOME)

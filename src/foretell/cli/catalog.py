"""`foretell catalog`: what is known, each number with its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from foretell.catalog import loader
from foretell.cli._app import Verb
from foretell.cli._options import OUTPUT, add
from foretell.errors import CatalogError, InputError, nearest
from foretell.units import GIB

__all__ = ["command"]

_CODE: Final = ("optimizer", "framework")
"""Kinds that are also held as code."""


def _kinds() -> list[str]:
    """Return the plural names that people list."""
    return [*loader.KINDS.values(), "model-types"]


def _list(kind: str | None, **options: Any) -> int:  # flags
    """List the entries of a KIND: models, hardware, systems, grids, prices, optimizers, frameworks ...

    Without KIND the kinds are counted. Your own entries (FORETELL_CATALOG) are listed with the shipped ones.
    """
    from foretell.cli._print import print_json, print_lines  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    rows = list(_rows(_kind(kind))) if kind is not None else [_count(name) for name in _kinds()]
    if options["json"]:
        print_json(envelope("catalog", {"action": "list", "kind": kind}, {"kind": kind, "entries": rows}))
    elif options["quiet"]:
        print_lines(str(row["id"]) for row in rows)
    else:
        print_lines(_table(rows))
    return 0


def _show(name: str, **options: Any) -> int:  # text or flags
    """Show everything that is known of NAME, and where it comes from."""
    from foretell.cli._print import print_json, print_lines  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    kind, entry = _find(name, options["kind"])
    more = _counted(entry) if kind == "model" else {}
    sources = _sources(entry)
    if options["json"]:
        inputs = {"action": "show", "kind": options["kind"], "name": name}
        result = {"kind": kind, "id": entry.get("id"), "entry": entry, **more}
        print_json(envelope("catalog", inputs, result, sources=sources))
        return 0
    if options["quiet"]:
        print_lines([str(entry.get("id"))])
        return 0
    plain = {key: value for key, value in entry.items() if key not in ("sources", "source", "config")}
    print_lines(_lines({"kind": kind} | plain | more))
    print_lines(_lines({"config": entry.get("config")} if "config" in entry else {}))
    for source in sources:
        text = "; ".join(str(value) for value in source.values()) if isinstance(source, dict) else str(source)
        print_lines([f"source: {text}"])
    return 0


def _count(kind: str) -> dict[str, Any]:
    """Return how many entries a kind has."""
    return {"id": kind, "entries": sum(1 for _ in _rows(kind))}


def _kind(text: str) -> str:
    """Return the plural of a kind's name."""
    name = loader.KINDS.get(text, text)
    if name not in _kinds():
        near = nearest(text, _kinds(), most=1)
        hint = f"Did you mean {near[0]}?" if near else None
        raise InputError("is no kind of entry", field="kind", value=text, allowed=_kinds(), hint=hint)
    return name


def _rows(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a kind, each as the few facts that a list shows."""
    if kind == "model-types":
        from foretell.arch.readers import known_model_types  # noqa: PLC0415  # 50 ms

        yield from ({"id": name} for name in known_model_types())
        return
    singular = next(one for one, many in loader.KINDS.items() if many == kind)
    held = loader.entries(singular)
    names = {entry["id"] for entry in held}
    for entry in (*held, *(own for own in _in_code(singular) if own["id"] not in names)):
        yield {"id": entry["id"], "name": entry.get("name", entry["id"]), **_facts(singular, entry)}


def _facts(kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return what a list shows of an entry beside its name."""
    if kind == "hardware":
        return {
            "memory_bytes": entry.get("memory_bytes"),
            "usable_memory_bytes": entry.get("usable_memory_bytes"),
            "memory_bandwidth_bytes_per_s": entry.get("memory_bandwidth_bytes_per_s"),
            "bf16_flops": _part(entry, "peak_flops").get("bf16"),
            "tdp_w": entry.get("tdp_w"),
        }
    if kind == "failure":
        return {key: entry.get(key) for key in ("accelerator", "nodes", "year", "causes")}
    if kind == "model":
        return {"parameters": entry.get("published_params"), "model_type": _part(entry, "config").get("model_type")}
    if kind == "system":
        return {
            "accelerator": entry.get("accelerator"),
            "accelerators_per_node": entry.get("accelerators_per_node"),
        }
    if kind == "grid":
        return {key: entry.get(key) for pair in _YEARS.items() for key in pair}
    return _price_facts(entry) if kind == "price" else {}


def _price_facts(entry: dict[str, Any]) -> dict[str, Any]:
    """Return how many prices an entry has, and of when; where a user's file has something else, it is reported on use."""
    rows = {key: [row for row in _listed(entry, key) if isinstance(row, dict)] for key in ("offers", "purchases")}
    dates = sorted(str(row["date"]) for held in rows.values() for row in held if "date" in row)
    span = dates[:1] if dates[:1] == dates[-1:] else [dates[0], dates[-1]]
    return {key: len(held) for key, held in rows.items()} | {"dates": " to ".join(span) or None}


def _listed(entry: dict[str, Any], key: str) -> list[Any]:
    """Return a list of an entry."""
    held = entry.get(key)
    return list(held) if isinstance(held, list | tuple) else []


def _part(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table of an entry; where a user's file has something else there, it is reported when it is used."""
    part = entry.get(key)
    return part if isinstance(part, dict) else {}


def _in_code(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the optimizers and framework profiles that are held as code, in the form of an entry."""
    if kind not in _CODE:
        return
    from dataclasses import asdict  # noqa: PLC0415

    from foretell.recipe.optimizers import OPTIMIZERS  # noqa: PLC0415
    from foretell.recipe.profiles import PROFILES  # noqa: PLC0415

    for item in (OPTIMIZERS if kind == "optimizer" else PROFILES).values():
        data = asdict(item)
        yield {"id": data.pop("name"), "name": data.pop("title", item.name), **data}


def _find(name: str, kind: str | None) -> tuple[str, dict[str, Any]]:
    """Return the kind and the entry of a name; a name of two kinds must say which."""
    one = {many: single for single, many in loader.KINDS.items()}
    wanted = [one[_kind(kind)]] if kind is not None and kind != "model-types" else list(loader.KINDS)
    found: list[tuple[str, dict[str, Any]]] = []
    near: list[str] = []
    for single in wanted:
        try:
            found.append((single, loader.entry(single, name)))
        except CatalogError as error:
            if error.problem == loader.SHARED:
                raise
            near += [str(item) for item in error.allowed or ()]
            key = name.strip().casefold()
            found += [(single, own) for own in _in_code(single) if key in (own["id"], *own.get("aliases", ()))]
    if not found:
        own = [entry["id"] for single in wanted for entry in _in_code(single)]
        hint = "See: foretell catalog list"
        raise CatalogError("is not in the catalog", field="name", value=name, allowed=nearest(name, [*near, *own]), hint=hint)
    if len(found) > 1:
        kinds = [single for single, _ in found]
        raise InputError("is of more than one kind", field="name", value=name, allowed=kinds, hint="Add --kind")
    return found[0]


def _counted(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what the shapes of a model give."""
    from foretell.arch import load_model  # noqa: PLC0415

    model = load_model(entry["id"])
    return {
        "counted_parameters": model.parameters,
        "counted_active_parameters": model.active_parameters,
        "layers": model.layers,
    }


def _sources(entry: dict[str, Any]) -> list[Any]:
    """Return an entry's sources as a list."""
    held = entry.get("sources", entry.get("source"))
    if held is None:
        return []
    if isinstance(held, list | tuple):
        return list(held)
    return [{"title": held, "date": entry["date"]} if "date" in entry else held]


def _lines(data: Any, indent: int = 0) -> Iterator[str]:  # a tree of anything
    """Yield a tree as indented lines."""
    pad = "  " * indent
    for key, value in data.items():
        if isinstance(value, dict):
            yield f"{pad}{key}"
            yield from _lines(value, indent + 1)
        elif isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
            yield f"{pad}{key}"
            yield from (f"{pad}  {_row(item)}" for item in value)
        elif isinstance(value, list | tuple):
            yield f"{pad}{key}: {', '.join(str(item) for item in value)}"
        else:
            gib = f"  ({value / GIB:.2f} GiB)" if _is_size(key, value) else ""
            yield f"{pad}{key}: {value}{gib}"


def _row(item: dict[str, Any]) -> str:
    """Write a table of a list on one line: its first value, then what else it says."""
    first, *rest = item.items()
    return ", ".join([str(first[1]), *(f"{key} {value}" for key, value in rest)])


def _is_size(key: str, value: object) -> bool:
    return key.endswith("memory_bytes") and isinstance(value, int) and value > GIB


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield rows under their column names; sizes in GiB, rates in TB/s and TFLOP/s."""
    if not rows:
        yield "nothing here yet"
        return
    hidden = {"usable_memory_bytes", *_YEARS.values()}
    columns = [key for key in rows[0] if key not in hidden and (key != "name" or len(rows[0]) == 2)]
    cells = [[_cell(key, row.get(key)) + _of_year(row, key) for key in columns] for row in rows]
    heads = [_HEADS.get(key, key) for key in columns]
    widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(columns))]
    for line in (heads, *cells):
        text = "  ".join(
            cell.ljust(width) if i == 0 or columns[i] in _TEXT else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield text.rstrip()


_YEARS: Final = {
    # what a list shows of a grid -> the year of it, shown in the same column
    "carbon_intensity_g_per_kwh": "carbon_intensity_year",
    "lifecycle_g_per_kwh": "lifecycle_year",
    "kwh_price_usd": "kwh_price_year",
}
_TEXT: Final = ("name", "model_type", "accelerator", "dates", "causes")
_HEADS: Final = {
    "memory_bytes": "GiB",
    "memory_bandwidth_bytes_per_s": "TB/s",
    "bf16_flops": "bf16 TFLOP/s",
    "tdp_w": "W",
    "parameters": "parameters",
    "accelerators_per_node": "per node",
    "carbon_intensity_g_per_kwh": "operational g/kWh",
    "lifecycle_g_per_kwh": "lifecycle g/kWh",
    "kwh_price_usd": "USD/kWh",
}


def _cell(key: str, value: object) -> str:
    """Write one value."""
    if value is None:
        return "-"
    if isinstance(value, int | float) and key == "memory_bytes":
        return f"{value / GIB:.1f}"
    if isinstance(value, int | float) and key == "memory_bandwidth_bytes_per_s":
        return f"{value / 1e12:.2f}"
    if isinstance(value, int | float) and key == "bf16_flops":
        return f"{value / 1e12:.0f}"
    if isinstance(value, int | float) and key == "parameters":
        return f"{value:,}"
    if isinstance(value, int | float) and key.endswith("_g_per_kwh"):
        return f"{value:.1f}"
    if isinstance(value, int | float) and key == "kwh_price_usd":
        return f"{value:.4f}"
    return str(value)


def _of_year(row: dict[str, Any], key: str) -> str:
    """Write the year of a value that has one."""
    year = row.get(_YEARS.get(key, ""))
    return "" if year is None else f" ({year})"


command = click.Group(
    "catalog",
    help="What is known: models, hardware, systems, grids, prices, optimizers, frameworks; each with its source.",
)
_LIST = Verb(
    "list",
    callback=_list,
    help=_list.__doc__,
    params=[click.Argument(["kind"], required=False)],
    examples=(
        "foretell catalog list",
        "foretell catalog list hardware",
        "foretell catalog list models --json",
    ),
)
_SHOW = Verb(
    "show",
    callback=_show,
    help=_show.__doc__,
    params=[click.Argument(["name"])],
    examples=(
        "foretell catalog show h100",
        "foretell catalog show adamw --kind optimizers",
        "foretell catalog show llama-3-8b --json",
    ),
)
add(_SHOW, (("--kind", "KIND", "Look among this kind only."),))
for _verb in (_LIST, _SHOW):
    add(_verb, OUTPUT, "Output")
    command.add_command(_verb)

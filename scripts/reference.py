"""Write docs/frameworks.md, docs/models.md and docs/solvers.md from the code's own tables and docstrings.

``python scripts/reference.py`` writes them; with ``--check`` it exits 1 when a page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from pathlib import Path

from foretell.arch.readers import known_model_types
from foretell.arch.readers._index import MODULES
from foretell.core import solver as public
from foretell.recipe.history import HISTORY
from foretell.recipe.optimizers import OPTIMIZERS
from foretell.recipe.profiles import PROFILES
from foretell.recipe.style import Style

ORDER = (
    "SingleNodeModel",
    "TrainingMemoryModel",
    "DistributedModel",
    "MoERoutingModel",
    "ServingModel",
    "ContinuousBatchingModel",
    "ServingCapacityModel",
    "WeightStreamingModel",
    "TailLatencyModel",
    "ReliabilityModel",
    "CheckpointModel",
    "EconomicsModel",
    "SustainabilityModel",
)
RESULTS = {"SingleNodeModel": "PerformanceProfile"}
"""Results that are not named after their solver."""
DOCS = Path(__file__).parents[1] / "docs"


def frameworks() -> str:
    """One section a profile: formats, what it can run, how its operators run, sources, and what was so before."""
    out = [
        "# Framework profiles\n",
        "Written by `scripts/reference.py` from `src/foretell/recipe/profiles.py` and `history.py`.\n",
        "Switches are fields of `foretell.recipe.style.Style`; only those that differ from its defaults are listed.\n",
    ]
    plain = Style()
    for p in PROFILES.values():
        out += [f"## {p.name}\n", f"{p.title[0].upper()}{p.title[1:]}.\n"]
        if p.aliases:
            out.append(f"Also called {', '.join(p.aliases)}.\n")
        out += ["| precision | parameter | gradient | master | optimizer | compute |", "|---|---|---|---|---|---|"]
        out += [
            f"| {k} | {f.param} | {f.grad} | {f.master or '-'} | {f.optim} | {f.compute} |" for k, f in sorted(p.formats.items())
        ]
        can = [
            name
            for name, yes in (("tensor", p.tensor), ("pipeline", p.pipeline), ("context", p.context), ("expert", p.expert))
            if yes
        ]
        out.append(
            f"\nZeRO stages {', '.join(map(str, p.zero))}, default {p.default_zero}; data parallelism by {p.sharding}; "
            f"other parallelism: {', '.join(can) or 'none'}; optimizer step: {p.optimizer_impl}; "
            f"expandable segments {'on' if p.expandable else 'off'} by default.\n"
        )
        switches = [
            f"`{f.name}={getattr(p.style, f.name)!r}`"
            for f in dataclasses.fields(Style)
            if getattr(p.style, f.name) != getattr(plain, f.name)
        ]
        if switches:
            out.append(f"Style: {', '.join(switches)}.\n")
        out += [f"- source: {s}" for s in p.sources]
        past = [c for c in HISTORY if c.profile == p.name]
        if past:
            out += ["", "Before:", ""]
            out += [
                f"- {c.since or '...'} to {c.until}: {', '.join(f'`{k}={v!r}`' for k, v in (*c.style, *c.fields))} ({c.source})"
                for c in past
            ]
        out.append("")
    out += ["## Optimizers\n", "| optimizer | states an element | source |", "|---|---|---|"]
    for o in OPTIMIZERS.values():
        bits = f" of {o.bits:g} bits, a scale per {o.block}" if o.bits else ""
        out.append(f"| {o.name} | {o.states}{bits} | {o.source} |")
    return "\n".join(out) + "\n"


def models() -> str:
    """Every model type, by the module that reads it."""
    by_module: dict[str, list[str]] = {}
    for model_type in known_model_types():
        by_module.setdefault(MODULES.get(model_type, "generic"), []).append(model_type)
    out = [
        "# Model types that are read\n",
        f"Written by `scripts/reference.py`: {len(known_model_types())} values of `model_type` (or diffusers' `_class_name`).",
        (
            "A type that is not listed is read as a Llama-like decoder when its file has the standard keys, "
            "and the answer says so.\n"
        ),
        "| module | model types |",
        "|---|---|",
    ]
    out += [f"| `arch/readers/{module}.py` | {', '.join(types)} |" for module, types in sorted(by_module.items())]
    return "\n".join(out) + "\n"


def _documented(cls: type) -> list[tuple[str, str]]:
    """Return (field, what stands below it) of a dataclass, in order; private fields are no part of it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0].body  # type: ignore[attr-defined]  # a class
    out = []
    for i, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id.startswith("_"):
            continue
        if ast.unparse(node.annotation).startswith("ClassVar"):
            continue
        after = body[i + 1] if i + 1 < len(body) else None
        said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        out.append((node.target.id, " ".join(str(said).split())))
    return out


def _signature(cls: type) -> str:
    """Return the call of a solver with its defaults."""
    shown = []
    for name, p in inspect.signature(cls.solve).parameters.items():  # type: ignore[attr-defined]
        if name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "" if p.default is p.empty else f"={p.default!r}"
        shown.append(f"{'**' if p.kind is p.VAR_KEYWORD else ''}{name}{default}")
    call = f"{cls.__name__}().solve({', '.join(shown)})"
    return "\n".join(textwrap.wrap(call, 100, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False))


def solvers() -> str:
    """One section a solver: what it answers, its call, and the fields of its answer."""
    out = [
        "# Solvers\n",
        "Written by `scripts/reference.py` from `src/foretell/core/solver`.\n",
        (
            "`from foretell.core.solver import ...`; every solver also has `.sweep(...)`, which takes a value or a sequence for "
            "each parameter and answers with a table of NumPy columns: rows that cannot run carry their reason, `best(by)` picks "
            "one.\n"
        ),
        (
            "A field that ends in a unit is a plain number (`_s` seconds, `_bytes`, `_j` joules); the name without the ending is "
            "the same as a `pint.Quantity`. Results are mappings; `to_dict()` is plain data, `explain()` text.\n"
        ),
    ]
    for name in ORDER:
        solver = getattr(public, name)
        result = getattr(public, RESULTS.get(name, name.replace("Model", "Result")))
        about = inspect.cleandoc(solver.__doc__ or "")
        out += [f"## {solver.__name__}\n", about + "\n", "```text", _signature(solver), "```\n"]
        out += [f"### {result.__name__}\n", f"{inspect.cleandoc(result.__doc__ or '')}\n", "| field | what it is |", "|---|---|"]
        out += [f"| `{field}` | {said} |" for field, said in _documented(result)] + [""]
    return "\n".join(out).rstrip() + "\n"


def main() -> int:
    """Write or check the pages."""
    stale = []
    for name, text in (("frameworks.md", frameworks()), ("models.md", models()), ("solvers.md", solvers())):
        path = DOCS / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, "utf-8")
    if stale and "--check" in sys.argv:
        print("out of date, run `python scripts/reference.py`:", ", ".join(stale))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""From a reference (a name, an alias, a path) to one catalog entry as a plain dict.

Three shelves are searched, first hit wins:
1. what `register` was given in this process,
2. the user's folder, `FORETELL_CATALOG` or `~/.config/foretell/catalog`,
3. the data shipped with foretell.

On a shelf an entry is one file, `<folder of the kind>/<id>.toml` (or .yaml, .yml, .json), whose `id` is its
file name and whose `aliases` are other spellings; case, blanks, "-" and "_" do not matter, except between two
names that differ in nothing else: us-east-1 and us-east1 are regions of two clouds. A file named after the
reference is opened directly; only then are aliases searched.
"""

from __future__ import annotations

import copy
import errno
import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foretell.catalog.decode import decode
from foretell.errors import CatalogError, ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "KINDS",
    "MAX_FILE_BYTES",
    "SHARED",
    "entries",
    "entry",
    "has_own",
    "ids",
    "is_file",
    "model_entry",
    "own_entry",
    "read_file",
    "register",
]

KINDS: Final = {
    # kind -> its folder
    "model": "models",
    "hardware": "hardware",
    "system": "systems",
    "grid": "grids",
    "price": "prices",
    "failure": "failures",
    "optimizer": "optimizers",
    "framework": "frameworks",
}
MAX_FILE_BYTES: Final = 2**20
"""A larger file is no catalog entry (the largest shipped one has a few KiB)."""
SHARED: Final = "is the name of more than one entry"
"""The problem of a look-up whose spelling does not decide."""

_SHIPPED = Path(__file__).parent / "data"
_SUFFIXES = (".toml", ".json", ".yaml", ".yml")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,99}")  # no separators: a reference never leaves its folder
_BLANKS = str.maketrans("", "", " \t_-")
_registered: dict[str, dict[str, dict[str, Any]]] = {}


def entry(kind: str, ref: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the entry of `kind` that `ref` names; raise CatalogError with the nearest names when none does.

    `ref` is an id, an alias, or a path that ends in .toml, .json, .yaml or .yml.

    >>> entry("hardware", "H100")["id"]
    'h100-sxm-80gb'
    """
    folder = _folder(kind)
    if is_file(ref):
        return read_file(ref)
    if not isinstance(ref, str) or not ref.strip():
        raise InputError("must be a name or a path", field=kind, value=ref)
    found = _from_registered(folder, ref) or _from_folder(_user_folder() / folder, ref) or _shipped(folder, ref)
    if found is not None:
        return found
    if os.sep in ref and os.path.exists(ref):  # noqa: PTH110
        raise InputError(
            "is not a file of an entry", field=kind, value=ref, allowed=f"a path that ends in {', '.join(_SUFFIXES)}"
        )
    raise CatalogError.unknown(kind, ref.strip(), _names(folder), hint=f"See: foretell catalog list {folder}")


def is_file(ref: object) -> bool:
    """Whether a reference is the path of a file, which may change, rather than a name."""
    return isinstance(ref, os.PathLike) or (isinstance(ref, str) and ref.strip().casefold().endswith(_SUFFIXES))


def has_own(kind: str) -> bool:
    """Whether anything of `kind` was added to what foretell ships: cheap, for look-ups made in a loop."""
    folder = _folder(kind)
    return bool(_registered.get(folder)) or os.path.isdir(os.path.join(_user_folder(), folder))  # noqa: PTH112, PTH118


def own_entry(kind: str, ref: str) -> dict[str, Any] | None:
    """Return the entry of `kind` that `ref` names among those that were added; None where none does."""
    folder = _folder(kind)
    if not ref.strip():
        return None
    return _from_registered(folder, ref) or _from_folder(_user_folder() / folder, ref)


def model_entry(ref: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a model's entry: {id, aliases, name, source, date, published_params, config}."""
    return entry("model", ref)


def ids(kind: str) -> list[str]:
    """Return the ids of every entry of `kind`, of all shelves, sorted."""
    folder = _folder(kind)
    shelves = (_user_folder() / folder, _SHIPPED / folder)
    return sorted({path.stem for shelf in shelves for path in _files(shelf)} | set(_registered.get(folder, {})))


def entries(kind: str) -> list[dict[str, Any]]:
    """Return every entry of `kind`, of all shelves, sorted by id."""
    return [entry(kind, name) for name in ids(kind)]


def register(kind: str, data: Mapping[str, Any] | str | os.PathLike[str]) -> str:
    """Add an entry (a mapping, or the path of a file of the catalog's form) for this process; return its id.

    It comes before a shipped entry of the same id or alias.
    """
    folder = _folder(kind)
    if not isinstance(data, str | os.PathLike | Mapping):
        raise InputError("must be a mapping or a path", field="entry", value=data)
    made = read_file(data) if isinstance(data, str | os.PathLike) else copy.deepcopy(dict(data))
    where = os.fspath(data) if isinstance(data, str | os.PathLike) else f"register({kind!r})"
    _check_names(made, where)
    _registered.setdefault(folder, {})[made["id"]] = made
    return str(made["id"])


def read_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the mapping that one .toml, .json, .yaml or .yml file of at most MAX_FILE_BYTES holds."""
    file = Path(path)
    where = str(file)
    suffix = file.suffix.casefold()
    if suffix not in _SUFFIXES:
        raise ConfigError("has an unknown file type", where=where, allowed=_SUFFIXES)
    try:
        if file.exists() and not file.is_file():
            raise OSError(errno.EINVAL, "not a regular file")  # a pipe would wait for ever  # noqa: TRY301
        with file.open("rb") as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(problem, where=where) from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"is larger than {MAX_FILE_BYTES} bytes, which no catalog entry is", where=where)
    try:
        data = decode(raw.decode("utf-8-sig"), suffix)
    except RecursionError as error:
        raise ConfigError("is nested too deeply", where=where) from error
    except ValueError as error:  # every decoder's error, and that of utf-8, is a ValueError
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"is not valid {suffix[1:].upper()}: {reason}", where=where) from error
    if not isinstance(data, dict):
        raise ConfigError(f"must hold a mapping, not {type(data).__name__}", where=where)
    return data


def _folder(kind: str) -> str:
    """Return the folder of a kind; its own name ("models") is taken too."""
    if not isinstance(kind, str):
        raise InputError("is no kind of catalog entry", field="kind", value=kind, allowed=list(KINDS))
    if kind in KINDS:
        return KINDS[kind]
    if kind in KINDS.values():
        return kind
    raise InputError("is no kind of catalog entry", field="kind", value=kind, allowed=list(KINDS))


@functools.lru_cache(maxsize=8)
def _expanded(text: str, _home: str | None, _profile: str | None) -> Path:
    """Return a folder whose name may start at the home directory, which the environment names: asked for in every look-up."""
    return Path(text).expanduser()


def _user_folder() -> Path:
    """Return the folder of the user's own entries; the usual one may be missing, a named one may not."""
    named = os.environ.get("FORETELL_CATALOG")
    try:
        folder = _expanded(named or "~/.config/foretell/catalog", os.environ.get("HOME"), os.environ.get("USERPROFILE"))
    except RuntimeError as error:  # no such user
        if not named:
            return Path(os.devnull)
        raise InputError("names no folder", field="FORETELL_CATALOG", value=named) from error
    if named and not os.path.isdir(folder):  # noqa: PTH112  # a stat for each look-up
        raise InputError("names no folder", field="FORETELL_CATALOG", value=named, hint="Make it, or unset it")
    return folder


def _key(name: str) -> str:
    """Return the spelling under which names are compared."""
    return name.casefold().translate(_BLANKS)


def _files(folder: Path) -> list[Path]:
    """Return the entry files of a folder, sorted by name; none where there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())  # no pipes
    except OSError:
        return []


def _from_registered(folder: str, ref: str) -> dict[str, Any] | None:
    """Return the entry registered last that `ref` names."""
    for data in reversed(_registered.get(folder, {}).values()):
        if _key(ref) in _keys(data):
            return copy.deepcopy(data)
    return None


def _from_folder(folder: Path, ref: str) -> dict[str, Any] | None:
    """Return the entry of a folder that `ref` names, by file name or else by alias."""
    path = _named_file(folder, ref) or _aliased_file(folder, ref)
    return None if path is None else _read_entry(path)


def _shipped(folder: str, ref: str) -> dict[str, Any] | None:
    """Do the same for the shipped data, which do not change: the search is remembered."""
    path = _shipped_file(folder, ref)
    return None if path is None else _read_entry(path)


@functools.lru_cache(maxsize=256)
def _shipped_file(folder: str, ref: str) -> Path | None:
    shelf = _SHIPPED / folder
    return _named_file(shelf, ref) or _aliased_file(shelf, ref)


def _named_file(folder: Path, ref: str) -> Path | None:
    name = ref.strip().casefold()
    if not _FILE_NAME.fullmatch(name):
        return None
    return next((path for suffix in _SUFFIXES if (path := folder / (name + suffix)).is_file()), None)


def _aliased_file(folder: Path, ref: str) -> Path | None:
    """Return the file whose id, name or aliases hold `ref`; only files with it in their text are parsed."""
    key = _key(ref)
    read = {path: _read_entry(path) for path in _files(folder) if key in _text_key(path)}
    found = [path for path, data in read.items() if key in _keys(data)]
    if len(found) > 1:  # us-east-1 and us-east1: then the spelling decides
        found = [path for path in found if ref.strip().casefold() in _spellings(read[path])] or found
    if len(found) > 1:
        names = [path.stem for path in found]
        raise CatalogError(SHARED, field=folder.name, value=key, allowed=names)
    return found[0] if found else None


def _text_key(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return _key(stream.read(MAX_FILE_BYTES))
    except OSError:
        return ""


def _read_entry(path: Path) -> dict[str, Any]:
    """Read a shelf's file and check that it is named as it says."""
    data = read_file(path)
    _check_names(data, str(path))
    if data["id"] != path.stem:
        raise ConfigError("must be the file's name", field="id", value=data["id"], where=str(path))
    return data


def _check_names(data: Mapping[str, Any], where: str) -> None:
    """Check the keys by which an entry is found."""
    name, aliases = data.get("id"), data.get("aliases", [])
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        allowed = "small letters, digits and . _ + - (h100-sxm-80gb)"
        raise ConfigError("must be the entry's name", field="id", value=name, allowed=allowed, where=where)
    if not isinstance(aliases, list | tuple) or not all(isinstance(alias, str) for alias in aliases):
        raise ConfigError("must be a list of names", field="aliases", value=aliases, where=where)


def _keys(data: Mapping[str, Any]) -> set[str]:
    """Return every spelling under which an entry is found."""
    return {_key(name) for name in _spellings(data)}


def _spellings(data: Mapping[str, Any]) -> set[str]:
    """Return an entry's id, aliases and name, in small letters."""
    names = (data["id"], *data.get("aliases", ()), data.get("name"))
    return {name.casefold() for name in names if isinstance(name, str)}


def _names(folder: str) -> Iterator[str]:
    """Yield the ids and aliases of every readable entry, for the list of nearest names."""
    for name in ids(folder):
        yield name
        try:
            yield from (alias for alias in entry(folder, name).get("aliases", ()))
        except InputError:
            continue  # a broken file of the user's is reported when it is asked for

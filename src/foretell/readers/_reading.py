"""What a reader makes of the files of a run: settings with their origins, and everything that it does not model."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from foretell.errors import ConfigError, InputError, nearest
from foretell.readers._document import Document, Found, first, parse_document
from foretell.readers._files import Files

if TYPE_CHECKING:
    from foretell.readers._launch import Launcher
__all__ = ["Builder", "Change", "Effect", "Origin", "Reading", "Setting", "Sources", "Unmodelled"]

Effect = Literal["memory", "more-memory", "less-memory", "speed", "both", "more", "less", "unknown"]
"""What an option that is not modelled may change.  more-memory: it only adds, so that a run that does not fit still does not;
more, less: memory that way, and speed; both: memory either way, and speed."""

Value = str | int | float | bool | tuple[str, ...]
_T = TypeVar("_T")
_FILES: Final = ("yaml", "json", "toml")
"""Forms of documents that are files of their own."""
_SURE: Final = 0.5
"""Claim from which a file beside the one that is read is a run of its own."""
_READ_WRAPPERS: Final = ("accelerate", "deepspeed")
"""Wrappers whose own arguments may change the run; those of torchrun, srun and mpirun say how many processes there are."""
_NEAR: Final = 0.75
"""Likeness from which one key may be meant for another (difflib's ratio)."""
_LONGEST: Final = 80
"""Letters of a key beyond which it is no typo."""
_TYPOS: Final = 20
"""Unknown keys of a run for which a known one is looked for."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value stood, or whose default it is."""

    path: str = ""
    line: int = 0
    key: str = ""
    why: str = ""
    """Of a default: whose, with its source; of a value in a file: how it was read, where that is not plain."""

    def __str__(self) -> str:
        """Return "path:line", or whose default it is."""
        return f"{self.path}:{self.line}" if self.path else self.why


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of the run, in the vocabulary of the command line."""

    name: str
    value: Value
    origin: Origin
    said: str = ""
    """As it is written in the file: "gradient_checkpointing: true"."""

    @property
    def option(self) -> str | bool:
        """Return the value as an option takes it."""
        if isinstance(self.value, bool):
            return self.value
        if isinstance(self.value, tuple):
            return ",".join(self.value)
        if isinstance(self.value, float):
            return repr(int(self.value)) if self.value == int(self.value) and abs(self.value) < 2**53 else repr(self.value)
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """Something that was given, and is not modelled."""

    key: str
    said: str
    origin: Origin
    effect: Effect
    why: str
    share: float | None = None
    """Most of the run's memory that it takes or saves, as a share; None: not known."""


@dataclass(frozen=True, slots=True)
class Change:
    """A key of a document that is to get another value; None takes it out."""

    document: Document
    key: str
    value: Value | None
    flag: bool = False
    """On a command line: a flag that takes no value."""


Spell = Callable[[str, str | bool], "list[Change] | None"]
"""(option, its value) -> what to change so that the run has it; None where the files cannot say it."""


@dataclass(frozen=True)
class Reading:
    """A run as its own files describe it."""

    family: str
    """Whose files they are: axolotl, vllm ..."""
    verb: Literal["train", "serve"]
    version: str
    """Of the framework, whose defaults were taken."""
    model: str | Mapping[str, Any] | None
    """A name, a path, or the content of a config.json; None where the files name none."""
    model_origin: Origin | None
    settings: Mapping[str, Setting]
    unmodelled: tuple[Unmodelled, ...]
    unknown: tuple[Unmodelled, ...]
    """In no table of this family: what they do is not known."""
    neutral: tuple[Unmodelled, ...]
    """Known to change neither memory nor speed."""
    needs: Mapping[str, str]
    """Option -> why the files cannot say it: to be given before there is an answer."""
    notes: tuple[str, ...]
    documents: tuple[Document, ...]
    spell: Spell = field(repr=False, compare=False)

    @property
    def doubts(self) -> tuple[Unmodelled, ...]:
        """What makes an answer uncertain."""
        return (*self.unmodelled, *self.unknown)


@dataclass
class Sources:
    """What there is to read: documents in the order in which they take precedence, and the launch line."""

    main: Document
    """The file, or the arguments, that decide the family."""
    files: Files
    others: tuple[Document, ...] = ()
    """Files given beside it (an accelerate configuration, a DeepSpeed JSON)."""
    launch: Launcher | None = None
    given: Mapping[str, str | bool] = field(default_factory=dict)
    """What the user says beside the files, by option: files that say different things of different GPUs go by it."""
    opened: list[Document] = field(default_factory=list)
    overrides: Document | None = None
    """Arguments of the command that stand above the file (``k=v``, ``--k v``); set by the reader."""
    _wrappers: dict[str, Document] = field(default_factory=dict, repr=False)

    @property
    def documents(self) -> tuple[Document, ...]:
        """Return all documents, each once."""
        launch = self.launch
        started = [] if launch is None else [launch.document, *(self.wrapper(name) for name in _READ_WRAPPERS)]
        every = [self.overrides, self.main, *self.others, *self.opened, *started]
        return tuple(dict.fromkeys(document for document in every if document is not None))

    def get(self, *keys: str) -> Found | None:
        """Return a value of the overrides, or else of the main document."""
        return first([d for d in (self.overrides, self.main) if d is not None], *keys)

    def wrapper(self, name: str) -> Document | None:
        """Return the own arguments of what wraps the program ("accelerate", "deepspeed"), or None."""
        if self.launch is None or name not in self.launch.wrappers:
            return None
        if name not in self._wrappers:
            from foretell.readers._arguments import arguments  # noqa: PLC0415  # where there is a command

            self._wrappers[name] = arguments(self.launch, self.launch.wrappers[name])
        return self._wrappers[name]

    def follow(self, found: Found) -> Document | None:
        """Open the file that a value names; None where there is none.  ConfigError outside the roots, or if unreadable."""
        path = self.files.find(found.text(), found.document.path, found.where)
        if path is None:
            return None
        real = os.path.realpath(path)
        known = next((d for d in self.documents if d.form in _FILES and os.path.realpath(d.path) == real), None)
        if known is not None:
            return known
        made = parse_document(self.files.text(path), path)
        self.opened.append(made)
        return made

    def arguments(
        self,
        booleans: frozenset[str] = frozenset(),
        aliases: Mapping[str, str] | None = None,
        many: frozenset[str] | None = None,
        *,
        pairs: bool = True,
    ) -> Document | None:
        """Return the arguments of the command as a document of flat keys (``--a-b`` is ``a_b``); None without a command.

        See :func:`foretell.readers._arguments.arguments`, which reads a wrapper's words (``launch.wrappers``) as well.
        """
        if self.launch is None:
            return None
        from foretell.readers._arguments import arguments  # noqa: PLC0415  # where there is a command

        return arguments(self.launch, self.launch.words, booleans, aliases, many, pairs=pairs)


class Builder:
    """Collects what a reader finds; :meth:`reading` accounts for everything that nobody looked at."""

    def __init__(self, family: str, sources: Sources, *, verb: Literal["train", "serve"] = "train", version: str = "") -> None:
        """Start with nothing."""
        self.family, self.sources, self.version = family, sources, version
        self.verb: Literal["train", "serve"] = verb
        self.settings: dict[str, Setting] = {}
        self.unmodelled: list[Unmodelled] = []
        self.unknown: list[Unmodelled] = []
        self.neutral: list[Unmodelled] = []
        self.needed: dict[str, str] = {}
        self.notes: list[str] = []
        self._model: tuple[str | Mapping[str, Any], Origin] | None = None
        self._done: set[int] = set()

    # -- what is understood ---------------------------------------------------------------------------------
    def model(self, model: str | Mapping[str, Any], found: Found | None = None, why: str = "") -> None:
        """Say which model: a name, a path, or the content of a config.json built from the file's own keys."""
        self._model = (model, origin(found, why))

    def set(self, name: str, value: Value | None, found: Found, why: str = "") -> None:
        """Take a setting from the file; None leaves it as it is."""
        if value is not None:
            self.settings[name] = Setting(name, value, origin(found, why), f"{found.key}: {found.said}")

    def default(self, name: str, value: Value | None, why: str) -> None:
        """Take a setting that the file leaves to the framework, unless it is set; ``why``: whose default, with its source."""
        if value is not None and name not in self.settings:
            self.settings[name] = Setting(name, value, Origin(why=why))

    def given(self, name: str) -> Value | None:
        """Return the value of a setting so far."""
        found = self.settings.get(name)
        return None if found is None else found.value

    def needs(self, name: str, why: str) -> None:
        """Say that there is no answer before the user gives an option ("seq_len", "model"), and why the files do not."""
        self.needed[name] = why

    @property
    def named(self) -> str:
        """The model's name, the user's above the files'; empty where it is none."""
        asked = self.sources.given.get("model", None if self._model is None else self._model[0])
        return asked if isinstance(asked, str) else ""

    def degree(self, name: str) -> int:
        """Return a degree of parallelism so far: 1 where nothing says."""
        found = self.given(name)
        return found if isinstance(found, int) else 1

    def note(self, text: str) -> None:
        """Say something that the reader of the answer has to know."""
        self.notes.append(text)

    # -- what is not ----------------------------------------------------------------------------------------
    def doubt(self, found: Found, effect: Effect, why: str, *, share: float | None = None) -> None:
        """Name a value that changes memory or speed and is not modelled; ``share``: of the run's memory, at most."""
        found.document.mark(found.node, deep=True)
        self.unmodelled.append(Unmodelled(found.key, found.said, origin(found), effect, why, share))

    def harmless(self, found: Found) -> None:
        """Count a value among those that change neither memory nor speed."""
        found.document.mark(found.node, deep=True)
        self.neutral.append(Unmodelled(found.key, found.said, origin(found), "unknown", ""))

    def doubt_default(self, key: str, effect: Effect, why: str, *, share: float | None = None) -> None:
        """Name something that the framework does by itself and that is not modelled."""
        self.unmodelled.append(Unmodelled(key, "", Origin(why=f"default of {self.family}"), effect, why, share))

    def rest(
        self,
        document: Document,
        neutral: frozenset[str],
        unmodelled: Mapping[str, tuple[Effect, str]] | None = None,
        *,
        off: Mapping[str, tuple[Any, ...]] | None = None,
        known: Collection[str] = (),
        strict: str = "",
    ) -> None:
        """Account for every value of a document that nobody looked at.

        Keys are dotted, indices left out ("datasets[].path"); "wandb.*" covers all below.  A null, false, something empty,
        and a value that ``off`` lists for its key are options that are not used: neutral.  ``known``: keys, beside those of the
        tables and of settings so far, that an unknown one may have been meant to be.  ``strict``: the program that does not
        start with a key that it does not have.
        """
        table, idle, harmless = unmodelled or {}, off or {}, dict.fromkeys(neutral, True)
        names = {*neutral, *table, *known, *(setting.origin.key for setting in self.settings.values())}
        nowhere = f"is in no table of {strict or self.family}"
        nowhere += ", which does not start with what it does not have" if strict else ""
        self._done.add(id(document))
        for found in document.untouched():
            key = _pattern(found.key)
            about = _covered(key, table)
            value = found.node.plain()
            unused = value is None or value is False or value in ([], {}, "") or value in idle.get(key, ())
            if about is not None and not unused:
                self.unmodelled.append(Unmodelled(found.key, found.said, origin(found), *about))
            elif about is not None or value is None or _covered(key, harmless):
                self.neutral.append(Unmodelled(found.key, found.said, origin(found), "unknown", ""))
            else:
                meant = _meant(key, names) if len(self.unknown) < _TYPOS else None
                self.unknown.append(Unmodelled(found.key, found.said, origin(found), "unknown", f"{nowhere}: {_asked(meant)}"))

    def world(self) -> None:
        """Take the number of GPUs, and their kind, from the launch line, where it says so and no file did."""
        launch = self.sources.launch
        if launch is None:
            return
        for name, word in (("gpus_per_node", launch.per_node), ("gpus", launch.processes)):
            if word is not None and name not in self.settings:
                self.settings[name] = Setting(name, word[0], Origin(launch.path, word[1], word[2]), word[2])
        if launch.gpu is not None and "gpu" not in self.settings:
            from foretell.machine.hardware import load_hardware  # noqa: PLC0415  # where a command names one

            kind, line, said = launch.gpu
            try:
                taken = load_hardware(kind).name if re.fullmatch(r"[\w-]+", kind) else None  # a name, never a file
            except InputError:
                taken = None
            if taken is None:
                self.note(f"{launch.path}:{line}: {said} names a GPU that is not known here: say which (--gpu)")
            else:
                self.settings["gpu"] = Setting("gpu", kind, Origin(launch.path, line, said, f"taken as {taken}"), said)
        self.notes += launch.notes
        started = self.sources.wrapper("deepspeed")
        if started is not None:
            self.rest(started, frozenset("*"))  # where to run: nothing else

    def reading(self, spell: Spell | None = None) -> Reading:
        """Return the reading; values of documents that :meth:`rest` was not called for are unknown."""
        for document in self.sources.documents:
            if id(document) not in self._done and not self._left(document):
                self.rest(document, frozenset())
        model, place = self._model or (None, None)
        return Reading(
            family=self.family,
            verb=self.verb,
            version=self.version,
            model=model,
            model_origin=place,
            settings=self.settings,
            unmodelled=tuple(self.unmodelled),
            unknown=tuple(self.unknown),
            neutral=tuple(self.neutral),
            needs=self.needed,
            notes=tuple(dict.fromkeys(self.notes)),
            documents=self.sources.documents,
            spell=spell or _unwritten,
        )

    def _left(self, document: Document) -> bool:
        """Name a given file that nobody looked at; ConfigError where it is a run of its own."""
        if document.seen or not any(document is other for other in self.sources.others):
            return False
        from foretell.readers._registry import FAMILIES, owner_of  # noqa: PLC0415  # where there is such a file

        claim, owner = owner_of(document, FAMILIES)
        if not owner.beside and claim >= _SURE:
            hint = f"{self.family} is read from the other"
            raise refused(document, f"describes a second run ({owner.title}): give one", hint=hint)
        why = f"{self.family} does not read it here: what it changes is not counted"
        place = Origin(document.path, document.root.line)
        self.unmodelled.append(Unmodelled(document.path, owner.title, place, "both", why))
        return True


def _unwritten(_name: str, _value: str | bool) -> None:  # as Spell
    return None


def origin(found: Found | None, why: str = "") -> Origin:
    """Return the origin of a value."""
    return Origin(why=why) if found is None else Origin(found.document.path, found.node.line, found.key, why)


def refused(document: Document, problem: str, *, hint: str | None = None) -> ConfigError:
    """Make the error of a file that describes something else than a run."""
    return ConfigError(problem, where=document.path, hint=hint)


def _pattern(key: str) -> str:
    """Return a key without its indices."""
    out, rest = "", key
    while "[" in rest:
        head, _, tail = rest.partition("[")
        digits, _, rest = tail.partition("]")
        out += f"{head}[]" if digits.isdecimal() else f"{head}[{digits}]"
    return out + rest


def _meant(key: str, known: Collection[str]) -> str | None:
    """Return the known key that another was probably meant to be: below the same key, and spelt nearly so.

    >>> _meant("optim.learning_rat", ["optim.learning_rate", "learning_rat"]), _meant("warp", ["wrap_policy", "seed"])
    ('optim.learning_rate', None)
    """
    parent, dot, name = key.rpartition(".")
    start = parent + dot
    beside = {re.split(r"[.\[]", other[len(start) :], maxsplit=1)[0] for other in known if other.startswith(start)} - {"", "*"}
    near = [] if name in beside or len(name) > _LONGEST else nearest(name, beside, most=1)
    alike = bool(near) and difflib.SequenceMatcher(None, name.casefold(), near[0].casefold()).ratio() >= _NEAR
    return start + near[0] if alike else None


def _asked(meant: str | None) -> str:
    return "what it does is not known" if meant is None else f"did you mean {meant}?"


def _covered(key: str, table: Mapping[str, _T]) -> _T | None:
    """Return what a table says of a key: by itself, or by "prefix.*" of what holds it."""
    if key in table:
        return table[key]
    end = len(key)
    while (end := max(key.rfind(".", 0, end), key.rfind("[", 0, end))) > 0:
        if f"{key[:end]}.*" in table:
            return table[f"{key[:end]}.*"]
    return table.get("*")

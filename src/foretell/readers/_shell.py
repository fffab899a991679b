"""Shell scripts and command lines, parsed and never run: assignments, arrays, quotes, ``${VAR:-default}``, continuations.

What a shell would have to compute (command substitution, tests, loops) stays opaque: words that need it say so.
Simple arithmetic on known whole numbers is done: ``$((NODES * 8))``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from foretell.readers._pieces import Word, cut, joined
from foretell.readers._words import MOST_WORDS, Cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Command", "Script", "Word", "option", "parse_shell"]

_KEYWORDS: Final = frozenset((
    "if", "then", "else", "elif", "fi", "do", "done", "while", "until", "time", "!", "{", "}", "exec", "export", "declare",
    "local", "readonly", "typeset",
))  # fmt: skip
_SKIPPED: Final = frozenset(("for", "case", "select", "function", "esac"))
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\[[^\]\n]*\])?(\+?)=")
_OPERATORS: Final = ("&&", "||", ";;", "|&", ";", "|", "&", "(", ")")
_SBATCH: Final = re.compile(r"#(?:SBATCH|PBS|BSUB)[ \t]+(.*)")
_SLURM: Final = (
    (("--nodes", "-N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    (("--ntasks", "-n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    (("--ntasks-per-node",), ("SLURM_NTASKS_PER_NODE",)),
    (("--gpus-per-node",), ("SLURM_GPUS_PER_NODE",)),
)
"""Options of sbatch and the variables that they set (slurm.schedmd.com/sbatch.html, output environment variables)."""


@dataclass(frozen=True)
class Command:
    """A simple command: what is assigned in front of it, and its words."""

    words: tuple[Word, ...]
    environment: dict[str, Word]
    line: int


@dataclass
class Script:
    """The commands of a text, with the variables as they stood at each, and scheduler lines."""

    path: str
    text: str
    commands: list[Command] = field(default_factory=list)
    directives: list[Word] = field(default_factory=list)
    """Words of ``#SBATCH`` lines."""


def parse_shell(text: str, path: str) -> Script:
    """Return the commands of a script or of one command line; ConfigError for what cannot be one."""
    return _Parser(text, path).script()


class _Parser(Cursor):
    """Reads left to right once."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self.exported: dict[str, Word] = {}
        self.pending: dict[str, Word] = {}
        """Assignments of the statement that is being read."""
        self.made = Script(path, text)
        self.count = 0

    def script(self) -> Script:
        words: list[Word] = []
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t":
                self.step()
            elif self.text.startswith("\\\n", self.at):
                self.step(2)
            elif c == "#":
                self._comment()
            elif c == "\n":
                self._end(words)
                self.step()
            elif self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
                self._here_document()
            elif c in "<>" or (c == "&" and self.text.startswith("&>", self.at)):
                self._redirection()
            elif (found := next((o for o in _OPERATORS if self.text.startswith(o, self.at)), None)) is not None:
                self._end(words)
                self.step(len(found))
            elif (assigned := _ASSIGNED.match(self.text, self.at)) and all(w.text in _KEYWORDS for w in words):
                self._assignment(assigned)
                self._counted()
            else:
                before = self.at
                made = self.word()
                if not (self.text[self.at : self.at + 1] in ("<", ">") and self.text[before : self.at].isdecimal()):  # not "2>"
                    words += made
                if self.at == before:
                    self.step()
                self._counted(max(1, len(made)))
        self._end(words)
        return self.made

    def _counted(self, more: int = 1) -> None:
        self.count += more
        if self.count > MOST_WORDS:
            raise self.error("holds too many words")

    # -- statements -----------------------------------------------------------------------------------------
    def _end(self, words: list[Word]) -> None:
        given = [*words]
        words.clear()
        exports = bool(given) and given[0].text == "export"
        while given and given[0].text in _KEYWORDS and not given[0].quoted:
            given.pop(0)
        temporary, self.pending = self.pending, {}
        if exports:
            known = {word.text: self.values[word.text][0] for word in given if self.values.get(word.text)}
            self.exported |= temporary | known
            return
        if not given or given[0].text in _SKIPPED or given[0].text in ("[", "[[", "test", "echo", "set", "cd"):
            return
        self.made.commands.append(Command(tuple(given), {**self.exported, **temporary}, given[0].line))

    def _assignment(self, found: re.Match[str]) -> None:
        name, more = found[1], bool(found[3])
        self.step(len(found[0]))
        if self.text.startswith("(", self.at):
            self.step()
            items = self._array()
            self.arrays.add(name)
        else:
            items = self.word(assigned=True) or [Word("", self.line, self.at, self.at)]
            if len(items) > 1:
                items = [joined(items)]
        if more and name in self.values:
            both = [*self.values[name], *items]
            items = both if name in self.arrays else [joined(both, "")]
        self.values[name] = items
        self.pending[name] = items[0] if items else Word("", self.line, self.at, self.at)

    def _array(self) -> list[Word]:
        items: list[Word] = []
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == ")":
                self.step()
                return items
            if c in " \t\n" or self.text.startswith("\\\n", self.at):
                self.step(2 if c == "\\" else 1)
            elif c == "#":
                self._comment()
            else:
                before = self.at
                items += self.word()
                if self.at == before:
                    self.step()
            if len(items) > MOST_WORDS:
                raise self.error("holds too many words")
        raise self.error("has an array without its end")

    def _comment(self) -> None:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        directive = _SBATCH.match(self.text, self.at, end)
        if directive:
            said = list[Word]()
            for part in re.finditer(r"\S+", directive[1].split(" #")[0]):
                start = directive.start(1) + part.start()
                said.append(Word(part[0], self.line, start, start + len(part[0])))
                self._counted()
            self.made.directives += said
            self._scheduled(said)
        self.at = end

    def _scheduled(self, said: list[Word]) -> None:
        """Set the variables that Slurm sets from what one line asks of it."""
        for names, variables in _SLURM:
            found = option(said, names)
            if found is not None:
                for variable in variables:
                    self.values[variable] = [found]

    def _redirection(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in "<>&|":
            self.step()
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.step()
        self.word()

    def _here_document(self) -> None:
        found = re.compile(r"<<-?[ \t]*(['\"]?)([\w.]+)\1").match(self.text, self.at)
        if found is None:
            self.step(2)
            return
        close = re.compile(rf"^[ \t]*{re.escape(found[2])}[ \t]*$", re.MULTILINE).search(self.text, found.end())
        rest = self.text.find("\n", found.end())
        end = len(self.text) if close is None else close.end()
        # what follows the marker on its own line still belongs to the command
        self.step((end if rest < 0 or close is not None else len(self.text)) - self.at)


def option(words: Sequence[Word], names: tuple[str, ...]) -> Word | None:
    """Return the value of an option ("--nodes", "-N") among words: "--nodes=4", "--nodes 4", "-N4"; the last one counts."""
    out: Word | None = None
    for i, word in enumerate(words):
        for name in names:
            text = word.text
            if text == name and i + 1 < len(words):
                out = words[i + 1]
            elif text.startswith(f"{name}=") or (re.fullmatch(r"-\w", name) and re.fullmatch(rf"{name}\d+", text)):
                out = cut(word, len(name) + text.startswith(f"{name}="))
    return out

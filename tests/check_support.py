"""What tests of readers share: a reading asked as `foretell check` asks it."""

from __future__ import annotations

from typing import Any

from foretell.cli._check_request import Given, same_run, training_request
from foretell.plan import Launch
from foretell.readers.read import read_texts
from foretell.readers.rewrite import Rewritten, rewrite


def asked(reading: Any, gpu: str = "h100", model: str | None = None, **options: str | bool) -> Launch:
    """The training run that a reading describes."""
    return training_request(reading, Given(model, {"gpu": gpu, **options}))[0].launch


def rewritten(
    texts: list[tuple[str, str]], options: dict[str, str | bool], family: str | None = None, files: Any = None
) -> Rewritten:
    """Options written into texts and read again; fails where the family cannot."""
    reading = read_texts(texts, files=files, family=family)

    def again(replaced: Any) -> Any:
        return read_texts([(path, replaced.get(path, text)) for path, text in texts], files=files, family=family)

    made = rewrite(reading, options, again)
    assert made is not None, options
    return made


def round_trip(
    texts: list[tuple[str, str]],
    options: dict[str, str | bool],
    family: str | None = None,
    model: str | None = None,
    **more: str | bool,
) -> Rewritten:
    """The edit that says `options`, applied and read again, is exactly the run with those options."""
    made = rewritten(texts, options, family)
    before = read_texts(texts, family=family)
    wanted = asked(before, "h100", model, **(more | options))
    found = asked(made.reading, "h100", model, **more)
    assert same_run(found, wanted), (found.recipe, wanted.recipe, found.par, wanted.par)
    return made

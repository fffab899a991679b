"""Fuzz every reader with atheris: no exception but our own, no input that takes longer than a second.

    pip install atheris
    python scripts/fuzz_readers.py -max_total_time=600 [-seed=N] [FOLDER OF SEEDS]

Each input is a family, a form and a text; the texts start from the samples of tests/read_samples.py and from FOLDER.
An input that breaks a promise is written by libFuzzer as crash-*. Not run by CI.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

with atheris.instrument_imports(include=["foretell.readers"]):
    from foretell.errors import ForetellError
    from foretell.readers._registry import FAMILIES, families
    from foretell.readers.logs import read_log
    from foretell.readers.read import read_texts
    from foretell.readers.rewrite import rewrite

    [*families(FAMILIES)]  # every reader's module

from read_samples import SAMPLES

NAMES = ("a.yaml", "a.json", "a.toml", "a.sh", "command line")
CALLS = len(FAMILIES) + 2
OPTIONS = (("micro_batch", "1"), ("recompute", "full"), ("compile", True), ("max_model_len", "1024"))
SECONDS = 1.0


def one(data: bytes) -> None:
    """Read one input."""
    provider = atheris.FuzzedDataProvider(data)
    which, form = provider.ConsumeIntInRange(0, CALLS - 1), provider.ConsumeIntInRange(0, len(NAMES) - 1)
    text = provider.ConsumeUnicodeNoSurrogates(len(data)).replace("\0", "")
    start = time.perf_counter()
    try:
        if which == len(FAMILIES):
            read_log(text, "log.txt")
        else:
            family = FAMILIES[which] if which < len(FAMILIES) else None
            made = read_texts([(NAMES[form], text)], family=family)
            for name, value in OPTIONS:
                rewrite(made, {name: value}, lambda texts: read_texts([*texts.items()], family=family))
    except ForetellError:
        pass
    if time.perf_counter() - start > SECONDS:
        message = f"took {time.perf_counter() - start:.2f} s"
        raise TimeoutError(message)


def main() -> None:
    """Write the samples as seeds, and fuzz."""
    seeds = Path(sys.argv.pop()) if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else Path("fuzz-seeds")
    seeds.mkdir(exist_ok=True)
    for i, (family, name, text) in enumerate(SAMPLES):
        body = text.encode()
        # FuzzedDataProvider takes numbers from the end, text from the front (with a byte that says its kind)
        tail = bytes([NAMES.index(name), FAMILIES.index(family)])
        (seeds / f"{i:03}-{family}").write_bytes(b"\x01" + body + tail)
    atheris.Setup([sys.argv[0], str(seeds), *sys.argv[1:], "-max_len=20000"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

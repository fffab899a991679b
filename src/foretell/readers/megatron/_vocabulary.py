"""How many rows the token table of Megatron-LM's models has: tokenizers and padding.

Rules: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/core/tokenizers/utils/build_tokenizer.py``,
``megatron/training/vocab_utils.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.catalog import loader
from foretell.errors import ForetellError

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder
    from foretell.readers.megatron._args import Args

__all__ = ["padded", "vocabulary"]

_DEFAULT: Final = {"gpt": "gpt2bpetokenizer", "bert": "bertwordpiecelowercase", "t5": "bertwordpiecelowercase"}
"""``args_defaults`` of pretrain_gpt.py, pretrain_bert.py, pretrain_t5.py."""
_UNKNOWN: Final = 131_072
"""Tokens that are taken where nothing tells: as most tokenizers of 2024 and later have (Llama 3 128256, Mistral NeMo 131072)."""


def padded(vocab: int, divisible: int, tp: int) -> int:
    """Return a vocabulary padded for tensor parallelism (megatron/training/vocab_utils.py).

    >>> padded(50257, 128, 2)
    50432
    """
    multiple = divisible * tp
    return -(-vocab // multiple) * multiple


_TOKENIZERS: Final = {
    "gpt2bpetokenizer": (50257, "GPT-2's vocab.json"),
    "bertwordpiecelowercase": (30522, "the uncased vocab.txt of BERT"),
    "bertwordpiececase": (29096, "the cased vocab.txt of BERT, and 100 extra tokens"),
    "llama2tokenizer": (32000, "Llama 2's tokenizer.model"),
    "tiktokenizer": (2**17, "tiktoken_tokenizer.py DEFAULT_TIKTOKEN_MAX_VOCAB"),
}
"""Kinds of tokenizers (in lower case) whose vocabulary is known: how many tokens, and of which file
(megatron/core/tokenizers/utils/build_tokenizer.py)."""


def _named(name: str) -> tuple[int, str] | None:
    """Return the vocabulary that a tokenizer's name tells: a model of the catalog, or ``..._256k.model``."""
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith("."):
        try:
            raw = loader.model_entry(name)["config"]
        except ForetellError:
            raw = {}
        nested = raw.get("text_config")
        for place in (raw, nested if isinstance(nested, dict) else {}):
            rows = place.get("vocab_size")
            if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0:
                return rows, f"the token table of {name}"
    found = re.search(r"(?:^|[_-])(\d{2,3})k\b", name.rpartition("/")[2])
    return None if found is None else (int(found[1]) * 1000, "the file's name")


def vocabulary(b: Builder, args: Args, tp: int, kind: str) -> int:
    """Return the rows of the token table, padded as Megatron does."""
    whole, divisible = args.whole("padded_vocab_size"), args.whole("make_vocab_size_divisible_by", 128) or 128
    found, model = args.get("tokenizer_type"), args.get("tokenizer_model")
    given = args.whole("vocab_size")
    args.looked("vocab_file", "merge_file", "vocab_extra_ids")
    bare = args.on("no_pad_vocab_size", "disable_pad_vocab_size") is not None
    if whole is not None:
        return whole
    own = args.scripted or kind != "gpt"
    name = found.text().casefold() if found is not None else _DEFAULT[kind] if own else ""
    if found is None and given is not None and _foreign(args):
        name = "nulltokenizer"
    tokens, source = _tokens(name, model, given)
    said = args.get("vocab_size")
    if said is not None and given not in (None, tokens):
        kept = "--tokenizer-type is not given, and " if found is None else ""
        b.harmless(said)
        b.note(f"--vocab-size {given:,} is ignored: {kept}the tokenizer has {tokens:,} tokens (NullTokenizer takes --vocab-size)")
    about = model or found
    if tokens is None and not args.scripted:
        b.needs(
            "model", "the size of the vocabulary is not in the files: give --model NAME or write model.vocab_size into the file"
        )
    elif tokens is None and about is not None:
        why = f"how many tokens it has is in none of the files: {_UNKNOWN:,} are taken"
        b.doubt(about, "both", f"{why}; give --model NAME or write the vocabulary's size into the files")
    tokens = tokens or _UNKNOWN
    rows = tokens if bare else padded(tokens, divisible, tp)
    if source:
        b.note(f"token table of {rows:,} rows: {tokens:,} tokens ({source})" + (", padded" if rows != tokens else ""))
    return rows


def _foreign(args: Args) -> bool:
    """Whether the script is none of Megatron-LM's own, which have a tokenizer where none is named, or it has no files for one."""
    foreign = bool(args.program) and not args.program.startswith(("pretrain_", "train_rl"))
    return foreign and args.get("vocab_file", "merge_file") is None


def _tokens(name: str, model: Found | None, given: int | None) -> tuple[int | None, str]:
    """Return (tokens of a tokenizer, who says so)."""
    if name in ("nulltokenizer", "nullmultimodaltokenizer") and given is not None:
        return given, "--vocab-size"  # null_tokenizer.py; one more before core_v0.17
    if name == "tiktokenizer" and given is not None:
        return given, "--vocab-size"
    if name in _TOKENIZERS:
        return _TOKENIZERS[name]
    if model is not None and (known := _named(model.text())) is not None:
        return known
    return given, "--vocab-size" if given is not None else ""

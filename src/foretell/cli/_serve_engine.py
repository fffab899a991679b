"""From the options of `serve` to an engine with its flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.cli._values import one_of, real, share, whole
from foretell.cost.served_weights import FORMATS
from foretell.errors import CombinationError, InputError
from foretell.recipe.serving import ServingRecipe, Speculation
from foretell.validation import MAX_SEQUENCE

if TYPE_CHECKING:
    from foretell.arch.architecture import Architecture
    from foretell.cli._serve_load import Assumed, Options

__all__ = ["recipe_of"]

_METHODS: Final = ("draft", "mtp", "eagle")
_DRAFTED: Final = {"draft": 4, "mtp": 1, "eagle": 4}
"""Method -> tokens that are proposed in a step where nothing is said."""


def recipe_of(options: Options, arch: Architecture, assumed: Assumed) -> ServingRecipe:
    """Return the engine with its flags, as far as they are given."""
    flag = options["gpu_memory_utilization"]
    return ServingRecipe(
        engine=assumed.take(options["engine"], "vllm", "vLLM"),
        version=options["engine_version"],
        weights=_weights(options["weights"], arch, assumed),
        activations=_word(options["activations"]),
        kv=_word(options["kv_dtype"]),
        tp=whole(options["tp"], "tp") or 1,
        pp=whole(options["pp"], "pp") or 1,
        ep=whole(options["ep"], "ep") or 1,
        dp=whole(options["dp"], "dp") or 1,
        dp_kind=one_of(options["dp_kind"], "dp_kind", ("replica", "attention")) or "replica",
        max_num_seqs=whole(options["max_num_seqs"], "max_num_seqs"),
        max_num_batched_tokens=whole(options["max_num_batched_tokens"], "max_num_batched_tokens", maximum=MAX_SEQUENCE),
        max_model_len=whole(options["max_model_len"], "max_model_len", maximum=MAX_SEQUENCE),
        memory_share=None if flag is None else _memory_flag(flag),
        block_size=whole(options["block_size"], "block_size", maximum=MAX_SEQUENCE),
        chunked_prefill=options["chunked_prefill"],
        enforce_eager=bool(options["enforce_eager"]),
        speculation=_speculation(options),
    )


def _memory_flag(text: str) -> float:
    value = share(text, "gpu_memory_utilization")
    if not value:
        raise InputError("leaves nothing", field="gpu_memory_utilization", value=text, allowed="above 0% and at most 100%")
    return value


def _weights(text: str | None, arch: Architecture, assumed: Assumed) -> str:
    """Return the format of the weights: what is given, or what the model's file says, or 16 bits."""
    if text is not None:
        return text.strip().casefold()
    stored = arch.quantized
    if stored is None:
        assumed.append("weights in bf16")
        return "bf16"
    name = _stored(stored.method.casefold(), stored.detail.casefold(), stored.bits or max(b for _, b in stored.groups))
    assumed.append(f"weights in {name}, as the model's file says")
    return name


def _stored(method: str, detail: str, bits: float) -> str:
    """Name the served format that is nearest to what a file says of its weights."""
    if method in FORMATS:
        return method
    said = f"{method} {detail}"
    if bits < 6.0:
        return next((name for name in ("nvfp4", "mxfp4") if name in said), "int4")
    if bits < 12.0:
        return next((name for name in ("mxfp8", "int8") if name in said), "fp8")
    return "bf16"


def _speculation(options: Options) -> Speculation | None:
    """Return who proposes tokens, and how many of them are accepted."""
    method = one_of(options["speculative"], "speculative", _METHODS)
    if method is None and options["draft"] is not None:
        method = "draft"
    if method is None:
        for name in ("draft_tokens", "acceptance", "accepted_length"):
            if options[name] is not None:
                problem = "describes speculation, and there is none"
                raise InputError(problem, field=name, value=options[name], hint="Add --draft MODEL or --speculative mtp")
        return None
    if method == "draft" and options["draft"] is None:
        raise InputError("needs the model that proposes", field="speculative", value=method, hint="Add --draft MODEL")
    if method != "draft" and options["draft"] is not None:
        problem = f"is a model of its own, and {method} has none"
        raise CombinationError(
            problem, field="draft", value=options["draft"], hint=f"Leave out --draft or --speculative {method}"
        )
    if options["acceptance"] is not None and options["accepted_length"] is not None:
        raise CombinationError("and acceptance say the same", field="accepted_length", value=options["accepted_length"],
                               hint="Give one of the two")  # fmt: skip
    tokens = whole(options["draft_tokens"], "draft_tokens", maximum=64) or _DRAFTED[method]
    accepted = real(options["acceptance"], "acceptance", maximum=1.0)
    return Speculation(
        method=method,
        tokens=tokens,
        acceptance=0.7 if accepted is None else accepted,
        length=real(options["accepted_length"], "accepted_length", minimum=1.0, maximum=tokens + 1.0),
    )


def _word(text: str | None) -> str | None:
    return None if text is None else text.strip().casefold()

"""How Megatron-LM divides a run over GPUs: degrees, chunks of the pipeline, and how many GPUs there are.

Rules: NVIDIA/Megatron-LM core_v0.19.0 ``megatron/training/arguments.py`` (``validate_args``),
``megatron/core/transformer/transformer_block.py`` (``get_num_layers_to_build``).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from foretell.errors import InputError
from foretell.recipe.parallelism import parse_layout

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder
    from foretell.readers.megatron._args import Args
    from foretell.readers.megatron._model import Shape

__all__ = ["batch", "degree", "letters", "parallel", "world"]

_RUNNER: Final = 8
"""``GPUS_PER_NODE:-8``, ``NUM_NODES:-1`` of tests/functional_tests/shell_test_utils/_run_training.sh."""
_DEGREES: Final = (
    ("tp", "tensor_model_parallel_size"),
    ("pp", "pipeline_model_parallel_size"),
    ("cp", "context_parallel_size"),
    ("ep", "expert_model_parallel_size"),
)


def degree(args: Args, name: str) -> int:
    """Return a degree of parallelism; 1 where it is not given."""
    return args.whole(dict(_DEGREES)[name], 1) or 1


def parallel(b: Builder, args: Args, shape: Shape | None) -> None:
    """Take the degrees, and how layers lie on the stages of a pipeline."""
    for name, key in _DEGREES:
        found = args.get(key)
        if found is None:
            b.default(name, 1, args.source)
        else:
            b.set(name, found.whole(), found)
    tp, pp = degree(args, "tp"), degree(args, "pp")
    experts = args.get("expert_tensor_parallel_size")
    if experts is not None:
        b.set("etp", experts.whole(), experts)
    elif shape is not None and shape.experts:
        b.default("etp", tp, f"{args.source}: as tensor_model_parallel_size")
    sequence = args.get("sequence_parallel")
    if sequence is not None and sequence.flag():
        why = "" if tp > 1 else "Megatron-LM switches it off where nothing is tensor parallel (validate_args)"
        b.set("sp", tp > 1, sequence, why)
    else:
        b.default("sp", value=False, why=args.source)
    _pipeline(b, args, shape, pp)


def _pipeline(b: Builder, args: Args, shape: Shape | None, pp: int) -> None:
    """Take virtual stages and the layers of each chunk."""
    layout, stack = args.get("pipeline_model_parallel_layout"), args.get("hybrid_layer_pattern", "hybrid_override_pattern")
    virtual, each = args.get("num_virtual_stages_per_pipeline_rank"), args.get("num_layers_per_virtual_pipeline_stage")
    first, last = args.whole("decoder_first_pipeline_num_layers"), args.whole("decoder_last_pipeline_num_layers")
    ends = [args.on(f"account_for_{name}_in_pipeline_split") for name in ("embedding", "loss")]
    main = "" if stack is None else stack.text().strip("\"'").partition("/")[0]
    _predicting(b, args, shape, stack)
    if layout is not None:
        _of_layout(b, layout, pp)
        return
    if stack is not None and "|" in main:
        _chunks(b, [len(part) for part in main.split("|")], pp, stack)
        return
    counted = (0 if shape is None else shape.layers) + sum(end is not None for end in ends)
    vpp, found = 1, virtual or each
    if virtual is not None:
        vpp = virtual.whole()
    elif each is not None and shape is not None:
        if counted % pp or counted // pp % each.whole():
            raise each.error(f"does not divide the {counted} layers of {pp} stages", allowed="a divisor of a stage's layers")
        vpp = counted // pp // each.whole()
    if found is not None and vpp > 1 and pp > 1:
        b.set("vpp", vpp, found)
    uneven = args.get("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers") or ends[0] or ends[1]
    if uneven is None or pp == 1 or shape is None:
        return
    stages = _stages(uneven, counted, pp, first, last)
    chunks = [layers // vpp for _ in range(vpp) for layers in stages]
    chunks[0] -= ends[0] is not None
    chunks[-1] -= ends[1] is not None
    if min(chunks) < 0 or any(layers % vpp for layers in stages):
        raise uneven.error(f"leaves no whole layers for {pp} stages of {vpp} chunks")
    b.set("pp_layout", letters(chunks), uneven, "layers of each chunk")


def _predicting(b: Builder, args: Args, shape: Shape | None, stack: Found | None) -> None:
    """Take the layers that predict tokens further ahead."""
    found = args.get("mtp_num_layers") or stack
    if shape is None or not shape.predicting or found is None:
        return
    if shape.predicts:
        b.set("mtp_layers", shape.predicting, found)
    else:
        b.doubt(found, "both", "prediction layers of this make have no description here: they are left out")


def _stages(found: Found, layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    """Return the layers of each stage where the first or the last has a number of its own."""
    rest, free = layers - (first or 0) - (last or 0), pp - (first is not None) - (last is not None)
    if rest < 0 or (rest % free if free else rest):
        raise found.error(f"leaves {rest} layers for {free} stages", allowed="what the other stages can share evenly")
    middle = rest // free if free else 0
    out = [middle] * pp
    if first is not None:
        out[0] = first
    if last is not None:
        out[-1] = last
    return out


def _of_layout(b: Builder, found: Found, pp: int) -> None:
    try:
        chunks, mtp = parse_layout(found.text().strip("\"'").replace("\\", ""))
    except InputError as error:
        raise found.error("is not a layout", allowed="E, t, m, L, |, (...)*n") from error
    _chunks(b, list(chunks), pp, found)
    if mtp and not b.given("mtp_layers"):
        raise found.error("places prediction layers (m), and there are none", hint="Give --mtp-num-layers")


def _chunks(b: Builder, chunks: list[int], pp: int, found: Found) -> None:
    if len(chunks) % pp:
        raise found.error(f"has {len(chunks)} parts, which {pp} stages do not share evenly", allowed=f"{pp}, {2 * pp} ...")
    if len(chunks) == 1:
        return
    if len(chunks) > pp:
        b.set("vpp", len(chunks) // pp, found)
    b.set("pp_layout", letters(chunks), found, "layers of each chunk")


def letters(chunks: list[int]) -> str:
    """Return a layout in Megatron's letters, from the layers of each chunk.

    >>> letters([3, 2, 0])
    'Et*3|t*2|L'
    """
    parts = [f"t*{layers}" if layers else "" for layers in chunks]
    return "E" + "|".join(parts) + "L"


def batch(b: Builder, args: Args) -> None:
    """Take the batch: a global one, or (without it) one pass a step."""
    micro = args.get("micro_batch_size")
    if micro is None:
        b.needs("micro_batch", "micro_batch_size is not in the files: the script, or the recipe, has it")
    else:
        b.set("micro_batch", micro.whole(), micro)
    whole, steps, ramp = args.get("global_batch_size"), args.get("step_batch_size_schedule"), args.get("rampup_batch_size")
    if whole is not None:
        b.set("global_batch", whole.whole(), whole)
    if steps is not None:
        last = re.findall(r":\s*(\d+)", steps.text())
        if not last:
            raise steps.error("is not a schedule of batch sizes", allowed="0:384 200B:768")
        if whole is None:
            b.set("global_batch", int(last[-1]), steps, "the last of the schedule")
        b.doubt(steps, "speed", "the batch grows during the run: its last size is taken")
    if ramp is not None:
        b.doubt(ramp, "speed", "the batch grows during the run: its last size is taken")
    if "global_batch" not in b.settings:
        b.default("grad_accum", 1, f"{args.source}: the global batch is one pass of every replica")


def world(b: Builder, args: Args, *, tested: bool) -> None:
    """Take the number of GPUs: the launch line's, the test runner's, or the fewest that the degrees allow."""
    b.world()
    if "gpus" not in b.settings:
        _least(b, args, tested=tested)
    _reduced(b, args)


def _reduced(b: Builder, args: Args) -> None:
    """Name a reduction of gradients that waits for the backward pass, where more than one rank has a part's gradients."""
    if args.on("overlap_grad_reduce") is not None:
        return
    stated, part = b.sources.given, degree(args, "tp") * degree(args, "pp")
    taken = b.given("gpus")
    said = str(stated.get("gpus", part * degree(args, "cp") if taken is None else taken))
    if "dp" in stated or not said.isdecimal() or int(said) > part:
        b.doubt_default("overlap_grad_reduce", "speed", "it is off: gradients wait for the backward pass; overlap is taken")


def _least(b: Builder, args: Args, *, tested: bool) -> None:
    tp, pp, cp, ep = (degree(args, name) for name in ("tp", "pp", "cp", "ep"))
    etp = args.whole("expert_tensor_parallel_size", tp) or tp
    replica = tp * pp * cp
    least = pp * math.lcm(tp * cp, etp * ep if ep > 1 else 1)
    micro, total = args.whole("micro_batch_size"), b.given("global_batch")

    def possible(gpus: int) -> bool:
        passes = (micro or 1) * gpus // replica
        return not isinstance(total, int) or total % passes == 0

    sizes = [gpus for gpus in range(least, _RUNNER + 1, least) if possible(gpus)]
    if tested and sizes:
        why = "of Megatron-LM's test runner (_run_training.sh: 1 node of 8 GPUs)"
        b.default("gpus", sizes[-1], f"default {why}" if sizes[-1] == _RUNNER else f"as many as the batch allows of the 8 {why}")
        return
    if least > replica:
        b.default("gpus", least, "the fewest that the degrees of parallelism allow: tp x cp and etp x ep share them")
    if not {"gpus", "dp"} & b.sources.given.keys():
        b.note(
            "the files do not say how many GPUs there are: the fewest that their parallelism allows are taken (--gpus says it)"
        )

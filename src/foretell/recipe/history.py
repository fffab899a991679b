"""What frameworks did before: software drifts, so a run carries the date of the software it uses.

A profile describes today's behaviour.  Each :class:`Change` restores what was so before a commit (``until``), or
between two (``since``, ``until``).  Dates are commit dates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from foretell.recipe.profile import Profile


@dataclass(frozen=True, slots=True)
class Change:
    """``style``/``profile`` fields that hold for software dated in [since, until); profile ``*``: whichever it is."""

    profile: str
    source: str
    until: str = "9999"
    since: str = ""
    style: tuple[tuple[str, Any], ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()


HISTORY = (
    Change(
        "*",
        "pytorch/pytorch 65242 (released in 1.11): softmax and log_softmax no longer save their input (issue 49600)",
        until="2022-03-10",
        style=(("softmax_input", True),),
    ),
    *(
        Change(
            name,
            "PyTorch 2.0: zero_grad() sets gradients to None by default; before, they stayed allocated",
            until="2023-03-15",
            fields=(("gradients", "buffer"),),
        )
        for name in ("mmseg", "hf-trainer")
    ),
    Change(
        "litgpt",
        "bitsandbytes 9e753741 (0.43.2) drops the saved input; litgpt pinned 0.42.0 until d2ed13c3",
        until="2024-12-28",
        style=(("quantized_keeps_input", True),),
    ),
    *(
        Change(
            name,
            "huggingface/transformers#43203: checkpointing without re-entry becomes the default; "
            "before, layers ran again in full",
            until="2026-01-20",
            style=(("early_stop", False),),
        )
        for name in ("deepspeed", "hf-trainer", "peft")
    ),
    *(
        Change(
            name,
            "transformers 4.31 (2023-07-18): before, LlamaForCausalLM left the logits in half precision",
            until="2023-07-18",
            style=(("logits_upcast", False),),
        )
        for name in ("peft", "fsdp-qlora", "fsdp1", "fsdp2", "deepspeed", "hf-trainer")
    ),
    *(
        Change(
            name,
            "transformers 4.46 (loss/loss_utils.py): before, the model returned fp32 logits and shifted a copy of them",
            until="2024-10-24",
            style=(("logits_held", "float"), ("logits_shift", True)),
        )
        for name in ("peft", "fsdp-qlora", "fsdp1", "fsdp2", "deepspeed")
    ),
    Change(
        "hf-trainer",
        "transformers 4.46 (loss/loss_utils.py): before, the model shifted a copy of the fp32 logits",
        until="2024-10-24",
        style=(("logits_shift", True),),
    ),
    *(
        Change(
            name,
            "huggingface/transformers#39412 (4.54): before, keys and values were repeated for SDPA",
            until="2025-07-25",
            style=(("gqa_expand", True),),
        )
        for name in ("peft", "fsdp-qlora", "fsdp1", "fsdp2", "deepspeed", "hf-trainer")
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan e29b6b4d4: logits freed before the backward pass, fp32 cast moved into the loss",
        until="2024-06-12",
        style=(("logits_held", "float"),),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan a5e57e4a9: expandable_segments in the launcher",
        until="2024-10-22",
        fields=(("expandable", False),),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan bcebc0de5 .. 88247277c: aten.abs in the selective-checkpoint save list",
        since="2024-11-26",
        until="2025-02-05",
        style=(("sac_abs", True),),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan 3b39d7ab0: nn.RMSNorm replaces the own fp32 RMSNorm",
        until="2025-03-19",
        style=(("norm", "eager"),),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan 83e694105: tok_embeddings and [norm, output] become FSDP units of their own",
        until="2025-07-28",
        style=(("fsdp_units", "root"), ("keeps_last_block", True)),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan 3b85aa31f .. 114151ad4: cuDNN attention preferred but not in the save list",
        since="2025-05-14",
        until="2026-03-23",
        style=(("sac_attention", False),),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan 3396a4b37: fused wqkv",
        until="2026-03-18",
        style=(("fused_qkv", False),),
    ),
    Change(
        "torchtitan",
        "pytorch/torchtitan 786e26f8e: the chunked loss includes the output projection",
        until="2026-04-27",
        style=(("chunked_head", False),),
    ),
)


def at_date(profile: Profile, date: str) -> Profile:
    """``profile`` as it was at an ISO ``date`` (empty: today)."""
    if not date:
        return profile
    day = date + {4: "-07-01", 7: "-15"}.get(len(date), "")  # a year or a month stands for its middle
    for change in HISTORY:
        if change.profile in (profile.name, "*") and change.since <= day < change.until:
            profile = replace(profile, style=replace(profile.style, **dict(change.style)), **dict(change.fields))
    return profile

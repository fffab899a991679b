"""What a torchtune file says of its run: batch, length, formats, loss, optimizer, with its recipes' defaults.

Source: torchtune 0.7.0 (``recipes/*.py``, ``torchtune/training``, ``torchtune/datasets``, ``torchtune/modules``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from foretell.readers.hf._optimizers import Optim, taken

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._omegaconf import Values
    from foretell.readers._reading import Builder
    from foretell.readers.torchtune._models import Built

__all__ = ["DEFAULT", "OPTIMIZERS", "VERSION", "Run", "batch", "formats", "length", "loss", "optimizer"]

VERSION: Final = "0.7.0"
DEFAULT: Final = f"default of torchtune {VERSION}"


@dataclass(frozen=True)
class Run:
    """One run that is being read."""

    b: Builder
    values: Values
    kind: str
    """sft, dpo, kd, ppo, grpo or async-grpo."""
    built: Built
    adapters: bool
    alone: bool
    """One GPU: nothing is sharded."""

    def key(self, name: str) -> str:
        """Return where a key of the training loop stands."""
        return f"training.{name}" if self.kind == "async-grpo" else name

    def get(self, name: str) -> Found | None:
        """Return a value of the training loop."""
        return self.values.get(self.key(name))

    def on(self, name: str) -> Found | None:
        """Return a switch that is there and on; one that is off changes nothing."""
        found = self.get(name)
        if found is not None and not found.flag():
            self.b.harmless(found)
            return None
        return found


# -- batch and length ----------------------------------------------------------------------------------------------------


def batch(run: Run) -> None:
    """Take the batch: pairs are two sequences of one pass; PPO divides its own batch."""
    b = run.b
    micro, passes = run.get("ppo_batch_size" if run.kind == "ppo" else "batch_size"), run.get("gradient_accumulation_steps")
    steps = 1 if passes is None else passes.whole()
    if passes is not None:
        b.set("grad_accum", steps, passes)
    b.default("grad_accum", 1, f"{DEFAULT} (recipes take one batch a step)")
    if micro is None:
        b.needs("micro_batch", "the file has no batch_size")
    elif run.kind == "dpo":
        b.set(
            "micro_batch", 2 * micro.whole(), micro, "chosen and rejected answers of each pair in one pass (concatenated_forward)"
        )
    elif run.kind == "ppo":
        if micro.whole() % steps:
            raise micro.error(
                "must be a multiple of gradient_accumulation_steps, as the PPO recipe has it", allowed=f"{steps} ..."
            )
        b.set("micro_batch", micro.whole() // steps, micro, "ppo_batch_size / gradient_accumulation_steps")
    elif run.kind == "grpo":
        samples = run.get("grpo_samples")
        count = micro.whole() * (1 if samples is None else samples.whole())
        b.set("micro_batch", count, micro, "batch_size x grpo_samples answers in one pass (grpo_step)")
    else:
        b.set("micro_batch", micro.whole(), micro)
    for name in ("forward_batch_size", "ppo_batch_size", "batch_size"):
        if (other := run.get(name)) is not None and other is not micro and other.key != (micro.key if micro else ""):
            b.harmless(other)


def length(run: Run) -> None:
    """Take the length of a sample; null is that of the longest one (``torchtune/modules/transforms/tokenizers``)."""
    b = run.b
    found, packed = run.values.get("tokenizer.max_seq_len"), _packed(run)
    made = [run.values.get(key) for key in ("max_generated_tokens", "inference.max_generated_tokens")]
    answers = next((one for one in made if one is not None), None)
    if answers is not None and run.kind in ("ppo", "grpo", "async-grpo"):
        b.needs(
            "seq_len", f"prompts have the data's length, and up to {answers.text()} generated tokens follow ({answers.where})"
        )
        if found is not None:
            b.harmless(found)
        b.harmless(answers)
        return
    if found is not None:
        b.set("seq_len", found.whole(), found)
    elif packed is not None:
        raise packed.error("needs tokenizer.max_seq_len, to which samples are packed (torchtune/datasets)",
                           hint="Set tokenizer.max_seq_len")  # fmt: skip
    elif not run.values.has("tokenizer.max_seq_len") and (run.built.fused is not None or run.built.early):
        b.default("seq_len", 8192, f"{DEFAULT} of its image transforms (models/llama3_2_vision, models/llama4)")
    else:
        b.needs("seq_len", "tokenizer.max_seq_len is null: the longest sample of the data decides")
    if packed is not None:
        b.set("packing", True, packed)
        return
    b.default("packing", False, f"{DEFAULT}: samples are padded to the longest of their batch (data/_collate.py)")
    if found is not None:
        b.note(
            f"{found.where}: samples are not packed: the longest of a batch decides, taken as {found.whole()};"
            " with shorter ones: --set max_sample_len=N"
        )


def _packed(run: Run) -> Found | None:
    """Return what turns packing on."""
    keys = ["dataset.packed", "dataloader.packed"]
    for document in run.values.documents:
        keys += [f"{entry}.packed" for entry in document.entries("dataset")]
    out: Found | None = None
    for key in keys:
        found = run.values.get(key)
        if found is not None and found.flag():
            out = out or found
        elif found is not None:
            run.b.harmless(found)
    return out


# -- formats, loss and optimizer -----------------------------------------------------------------------------------------


def formats(run: Run) -> None:
    """Take ``dtype``: everything has it, adapters too; half precision is refused by the recipes."""
    found = run.values.get("dtype")
    word = "bf16" if found is None else str(found.text()).strip().casefold()
    if word not in ("bf16", "fp32"):
        assert found is not None  # noqa: S101  # it has a word
        raise found.error("is no format that torchtune trains in", allowed=("bf16", "fp32"))
    name = "bf16-true" if word == "bf16" else "fp32"
    if found is not None:
        run.b.set("precision", name, found, "weights, gradients and states alike (training/precision.py)")
    run.b.default("precision", name, f"{DEFAULT}'s configurations")
    if run.adapters:
        run.b.default("adapter_dtype", word, "torchtune makes adapters in the format of the model (modules/peft/lora.py)")


_PREFERENCES: Final = """
DPOLoss RSOLoss IPOLoss SimPOLoss PPOLoss GRPOLoss GRPOSimpleLoss GRPOCompletionLoss GRPOWithChunkedOutputLoss LinearGRPOLoss
"""
_WHOLE: Final = frozenset(_PREFERENCES.split())
"""Losses of ``torchtune/rlhf/loss`` and ``torchtune/dev``."""


def loss(run: Run) -> None:
    """Take the loss and what is compiled, which decides what a loss keeps."""
    b = run.b
    compiled, losses = _compiled(run)
    found = run.get("loss._component_") or run.get("loss")
    name = "" if found is None or not found.node.scalar else found.text().strip().rpartition(".")[2]
    if found is None or not name:
        b.needs("loss", "the file has no loss")
    elif name == "CEWithChunkedOutputLoss":
        b.set("loss", "chunked", found)
    elif name == "LinearCrossEntropyLoss":
        b.set("loss", "linear-chunked", found, "projection and loss chunk by chunk (modules/loss/cross_entropy_loss.py)")
    elif name == "CrossEntropyLoss":
        b.set("loss", "compiled" if losses else "eager", found)
    elif name in _WHOLE:
        b.set("loss", "eager", found, "log-probabilities of whole logits")
    else:
        b.doubt(found, "memory", f"{name}: how much it keeps is not known here")
        b.set("loss", "eager", found, "counted as PyTorch's")
    if compiled is not None:
        b.set("compile", True, compiled)


def _compiled(run: Run) -> tuple[Found | None, bool]:
    """Return (what compiles the model's layers, whether the loss is compiled): one switch, or one for each."""
    found = run.get("compile")
    if found is None:
        return None, False
    if found.node.scalar:
        return run.on("compile"), found.flag()
    parts = {name: run.get(f"compile.{name}") for name in ("model", "loss", "optimizer_step", "scale_grads")}
    model, part = parts["model"], parts["loss"]
    for name in ("optimizer_step", "scale_grads"):
        if (one := parts[name]) is not None:
            run.b.harmless(one)
    whole, cut = model is None or model.flag(), part is None or part.flag()
    if model is not None and not whole:
        run.b.harmless(model)
    if part is not None:
        run.b.harmless(part)
    if whole != cut:
        run.b.doubt(part or found, "memory", "the loss is counted as compiled where the model is")
    return (model or found) if whole else None, cut


OPTIMIZERS: Final = {
    "torch.optim.AdamW": Optim("adamw", "foreach"),
    "torch.optim.Adam": Optim("adamw", "foreach"),
    "torch.optim.SGD": Optim("sgd", "foreach"),
    "torch.optim.Adagrad": Optim("adagrad", "foreach"),
    "torch.optim.Adafactor": Optim("adafactor", "foreach"),
    "bitsandbytes.optim.AdamW": Optim("adamw", "fused", states="fp32"),
    "bitsandbytes.optim.AdamW8bit": Optim("adamw8bit", "fused"),
    "bitsandbytes.optim.Adam8bit": Optim("adamw8bit", "fused"),
    "bitsandbytes.optim.PagedAdamW": Optim("paged-adamw", "fused"),
    "bitsandbytes.optim.PagedAdamW8bit": Optim("paged-adamw8bit", "fused"),
    "bitsandbytes.optim.PagedAdam8bit": Optim("paged-adamw8bit", "fused"),
    "bitsandbytes.optim.Lion": Optim("lion", "fused", states="fp32"),
    "torchao.optim.AdamW8bit": Optim("adamw8bit", "fused"),
    "torchao.optim.AdamW4bit": Optim("adamw4bit", "fused"),
    "torchao.optim.AdamWFp8": Optim("adamwfp8", "fused"),
}
"""Optimizers by their paths; torchao had them in ``prototype.low_bit_optim`` before 0.9."""


def optimizer(run: Run) -> None:
    """Take the optimizer, and whether it steps inside the backward pass."""
    b = run.b
    found = run.get("optimizer._component_") or run.get("optimizer")
    if found is None or not found.node.scalar:
        b.needs("optimizer", "the file has no optimizer")
        return
    path = found.text().strip().replace("torchao.prototype.low_bit_optim", "torchao.optim")
    path = (
        {"bitsandbytes": "bitsandbytes.optim"}.get(path.rpartition(".")[0], path.rpartition(".")[0])
        + "."
        + path.rpartition(".")[2]
    )
    if path not in OPTIMIZERS:
        b.doubt(found, "both", "an optimizer that is not known here: counted as AdamW")
        path = "torch.optim.AdamW"
    taken(b, found, OPTIMIZERS[path])
    flags = {name: run.get(f"optimizer.{name}") for name in ("fused", "foreach", "amsgrad", "momentum")}
    fused, foreach, third, momentum = flags.values()
    if path.startswith("torch.") and fused is not None and fused.flag():
        b.set("optimizer_impl", "fused", fused)
    elif path.startswith("torch.") and foreach is not None and not foreach.flag():
        b.set("optimizer_impl", "forloop", foreach)
    if third is not None and third.flag():
        b.set("optimizer", "amsgrad", third)
    if momentum is not None and momentum.real() > 0 and path.endswith("SGD"):
        b.set("optimizer", "sgdm", momentum)
    for one in flags.values():
        if one is not None and not any(
            s.origin.key == one.key and s.origin.path == one.document.path for s in b.settings.values()
        ):
            b.harmless(one)
    within, clipped = run.on("optimizer_in_bwd"), run.get("clip_grad_norm")
    if within is not None and clipped is not None:
        raise clipped.error("cannot be beside optimizer_in_bwd: true: torchtune refuses both", hint="Set clip_grad_norm: null")
    if within is not None:
        b.set("optimizer_in_backward", True, within)
    if clipped is not None:
        b.harmless(clipped)

"""Weights of a model under a recipe: which of them train, in which formats they and their states are kept."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Embedding, Head, Linear, Norm, Operator, PromptAttention, Weight
from foretell.cost.linear import Lin
from foretell.dtypes import dtype
from foretell.errors import InputError
from foretell.recipe.optimizers import Optimizer
from foretell.recipe.profile import Formats
from foretell.recipe.training import Adapter, TrainingRecipe

SHARDED = {"1": "1/z", "tp": "1/z.tp", "ep": "1/ze", "etp": "1/etp"}
LOCAL = {"1": "1/1", "tp": "1/tp", "ep": "1/ep", "etp": "1/etp"}


FP32 = 4.0


def unit(name: str | None) -> float:
    """Bytes per element of a format (0 for None)."""
    return 0.0 if name is None else float(dtype(name).bytes_per_element)


@dataclass(frozen=True, slots=True)
class AdapterOnLinear:
    """A LoRA pair on one matrix, as the emitter needs it."""

    rank: int
    unit: float
    cast_input: bool
    dropout: float
    grad_a: Lin
    grad_b: Lin
    elements: dict[str, int]
    outputs: int
    """Width of B's output: less than the matrix's where only some of its parts are adapted."""
    frozen: dict[str, int]
    """Elements that are added but do not train (LoRA-FA's A)."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Formats and trainability of every weight."""

    recipe: TrainingRecipe
    formats: Formats
    optimizer: Optimizer
    fused_wgrad: bool = False
    """Weight gradients are added to main gradients inside the matmul: autograd makes none."""
    peft_casts: bool = True
    """PEFT casts an adapter's input to the adapter's own format (``_cast_input_dtype``)."""
    quantizes_head: bool = False
    dequantized: str = ""
    """See :class:`foretell.recipe.profile.Profile`."""
    keeps_wide: bool = False
    """Weights that transformers keeps in fp32 are: its code runs (:attr:`foretell.arch.operators.Weight.wide`)."""

    # -- trainability ---------------------------------------------------------------------------------------

    def trains(self, op: Operator) -> bool:
        adapter = self.recipe.adapter
        if adapter is None:
            if self.optimizer.one_block and isinstance(op, (Embedding, Head)):
                return False  # BAdam: include_embedding=False, include_lm_head=False
            return getattr(op, "trained", True) and any(True for _ in op.weights())
        if isinstance(op, PromptAttention):
            return True
        if adapter.kind in ("ln-tuning", "adapter-v2") and isinstance(op, Norm):
            return True
        return any(matches(op.name, m) for m in adapter.modules_to_save)

    def targeted(self, op: Operator) -> bool:
        adapter = self.recipe.adapter
        if adapter is None or not isinstance(op, (Linear, Head)):
            return False
        if "all-linear" in adapter.targets and isinstance(op, Linear):
            return True
        return any(matches(op.name, target) for target in adapter.targets) or bool(self.adapted_parts(op))

    def adapted_parts(self, op: Operator) -> list[int]:
        """Widths of the parts of a merged projection that are targets by their own names."""
        adapter = self.recipe.adapter
        if adapter is None or not isinstance(op, Linear):
            return []
        return [width for name, width in op.parts if any(matches(name, target) for target in adapter.targets)]

    def adapter(self, op: Linear | Head) -> AdapterOnLinear | None:
        """The adapter on ``op``, if it is one of the targets."""
        spec = self.recipe.adapter
        if spec is None or spec.kind not in ("lora", "dora", "qlora", "lora-fa") or not self.targeted(op):
            return None
        width = unit(spec.dtype)
        d_in, d_out, split = (op.d_in, op.d_out, op.split) if isinstance(op, Linear) else (op.dim, op.rows, "col")
        a_shard, b_shard = ("tp", "1") if split == "row" else ("1", "tp" if split == "col" else "1")
        parts = self.adapted_parts(op)
        outputs = sum(parts) if parts else d_out
        a = spec.rank * d_in * max(1, len(parts))
        b = spec.rank * outputs + (d_out if spec.kind == "dora" else 0)
        fixed = "lora-fa" in (spec.kind, self.optimizer.name)
        elements = {} if fixed else {a_shard: a}
        elements[b_shard] = elements.get(b_shard, 0) + b
        return AdapterOnLinear(
            rank=spec.rank,
            unit=width,
            cast_input=self.peft_casts,
            dropout=spec.dropout or 0.0,
            grad_a=Lin() if fixed else Lin.of("gradients", LOCAL[a_shard], a * width),
            frozen={a_shard: a} if fixed else {},
            grad_b=Lin.of("gradients", LOCAL[b_shard], b * width),
            elements=elements,
            outputs=outputs,
        )

    def scaled(self, op: Operator) -> float:
        """Elements that LLaMA-Adapter v2 (arXiv 2304.15010) adds to a matrix: a bias and a scale of each output."""
        adapter = self.recipe.adapter
        if adapter is None or adapter.kind != "adapter-v2" or not isinstance(op, (Linear, Head)):
            return 0.0
        return 2.0 * op.width

    def rescaled(self, op: Operator) -> float:
        """Elements of the vector that (IA)3 (arXiv 2205.05638) multiplies an output with, or the input of the last
        matrix of a feed-forward network (PEFT ``feedforward_modules``)."""
        adapter = self.recipe.adapter
        if adapter is None or adapter.kind != "ia3" or not isinstance(op, Linear) or not self.targeted(op):
            return 0.0
        return float(op.d_in if scales_input(op) else op.d_out)

    def added(self, op: Operator) -> dict[str, float]:
        """Elements of the adapters on ``op`` by shard."""
        pair = self.adapter(op) if isinstance(op, (Linear, Head)) else None
        out = {shard: float(n) for shard, n in pair.elements.items()} if pair is not None else {}
        extra = self.scaled(op) or self.rescaled(op)
        if extra:
            whole = isinstance(op, Linear) and op.split != "col"
            out["1" if whole else "tp"] = extra
        return out

    # -- what the tape asks ---------------------------------------------------------------------------------

    def gradient(self, op: Operator, index: int | None = None) -> Lin:
        """Bytes of the weight gradients autograd makes for ``op`` (``index``: one matrix of a pair)."""
        out = Lin()
        if self.fused_wgrad or not self.trains(op):
            return out
        weights = list(op.weights())
        if index is not None:
            half = len(weights) // 2
            weights = weights[:half] if index == 0 else weights[half:]
        for w in weights:
            size = w.elements * self.at_least_wide(w, unit(self.formats.wgrad))
            out.add(Lin.of("gradients", LOCAL[w.shard], size * self.recipe.trainable_fraction))
        return out

    def tied_gradient(self, op: Head) -> Lin:
        """Gradient of a tied output projection: the token table's."""
        if self.fused_wgrad:
            return Lin()
        return Lin.of("gradients", LOCAL["tp"], float(op.rows) * op.dim * unit(self.formats.wgrad))

    def weight_copy(self, op: Operator) -> tuple[Lin, Lin]:
        """Transient copies of the weights in compute format (a dequantised base), forward and backward."""
        if not self.quantized(op):
            return Lin(), Lin()
        wide = unit(self.formats.compute)
        if self.dequantized and self.dequantized != self.formats.compute:
            wide += unit(self.dequantized)
        out = Lin()
        for w in op.weights():
            if w.role in ("matrix", "expert", "head"):
                out.add(Lin.of("temporaries", LOCAL[w.shard], w.elements * wide))
        return out, Lin(out)

    @property
    def compute_unit(self) -> float:
        """Bytes of a matmul operand."""
        return unit(self.formats.compute)

    def quantized(self, op: Operator) -> bool:
        if self.recipe.quantization is None:
            return False
        return isinstance(op, Linear) or (self.quantizes_head and isinstance(op, Head))

    # -- states ---------------------------------------------------------------------------------------------

    def param_unit(self, op: Operator, w: Weight) -> float:
        """Stored bytes per element of one weight."""
        q = self.recipe.quantization
        if q is not None:
            if self.quantized(op) and w.role in ("matrix", "head"):
                return unit({"nf4": "nf4-dq" if q.double else "nf4", "fp4": "nf4", "int8": "int8"}[q.kind])
            return unit(q.rest)
        return self.at_least_wide(w, unit(self.formats.param))

    def at_least_wide(self, w: Weight, size: float) -> float:
        """Bytes per element of a parameter, a gradient or a state that has ``size`` where the weight has no format of its own."""
        return max(FP32, size) if w.wide and self.keeps_wide else size

    def scale_unit(self, op: Operator, w: Weight) -> float:
        """Bytes of block scales per element of a quantised matrix.  They are attributes, not parameters (bitsandbytes
        ``Params4bit.quant_state``): no sharding divides them."""
        q = self.recipe.quantization
        if q is None or not self.quantized(op) or w.role not in ("matrix", "head") or q.kind == "int8":
            return 0.0
        return self.param_unit(op, w) - 0.5

    def elements(self, block: Block) -> tuple[dict[str, float], dict[str, float], Lin]:
        """(trained elements by shard, trained matrix elements by shard, bytes of stored parameters) of a block."""
        trained: dict[str, float] = {}
        matrices: dict[str, float] = {}
        stored = Lin()
        for op in block.ops:
            train = self.trains(op)
            for w in op.weights():
                stored.add(Lin.of("weights", LOCAL[w.shard], w.elements * (self.param_unit(op, w) - self.scale_unit(op, w))))
                stored.add(Lin.of("quantization_scales", LOCAL[w.shard], w.elements * self.scale_unit(op, w)))
                if train:
                    trained[w.shard] = trained.get(w.shard, 0.0) + w.elements * self.recipe.trainable_fraction
                    if w.role in ("matrix", "expert"):
                        matrices[w.shard] = matrices.get(w.shard, 0.0) + w.elements
            for shard, n in self.added(op).items():
                stored.add(Lin.of("adapters", LOCAL[shard], n * unit(self.recipe.adapter.dtype if self.recipe.adapter else None)))
                trained[shard] = trained.get(shard, 0.0) + n
            pair = self.adapter(op) if isinstance(op, (Linear, Head)) else None
            if pair is not None:
                for shard, fixed in pair.frozen.items():
                    stored.add(Lin.of("adapters", LOCAL[shard], fixed * pair.unit))
        return trained, matrices, stored


def scales_input(op: Linear) -> bool:
    """Whether (IA)3 scales the input of ``op``: the last matrix of a feed-forward network."""
    return op.name.rsplit(".", 1)[-1] in ("down_proj", "fc2", "wo", "c_proj", "dense_4h_to_h", "w2")


def matches(name: str, pattern: str) -> bool:
    """Whether a module name matches a target: the name, its last part, or a glob."""
    return name == pattern or name.endswith("." + pattern) or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


def check_targets(arch: Architecture, adapter: Adapter, where: str | None = None) -> None:
    """Raise :class:`InputError` when a target matches no matrix of the model."""
    missing, names = unmatched(arch, adapter)
    if missing:
        raise InputError("matches no matrix of the model", field="lora_targets", value=missing[0], allowed=names, where=where)


def unmatched(arch: Architecture, adapter: Adapter) -> tuple[tuple[str, ...], list[str]]:
    """Return the targets that match no matrix of the model, and the names of its matrices."""
    linears = [op for block, _ in arch.blocks() for op in block.ops if isinstance(op, (Linear, Head))]
    names = {op.name for op in linears} | {name for op in linears if isinstance(op, Linear) for name, _ in op.parts}
    missing = (t for t in adapter.targets if t != "all-linear" and not any(matches(n, t) for n in names))
    return tuple(missing), sorted(names)

"""Optimizers as data: state per trained element, and what a step needs for a moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretell.catalog import loader
from foretell.errors import CatalogError


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer."""

    name: str
    states: int
    """Elements kept between steps, per trained element; fp32, or what the recipe or ``bits`` says."""
    source: str
    bits: float | None = None
    """Bits of one state element where the optimizer fixes it (8-bit Adam ...)."""
    block: int = 0
    """Elements that share one fp32 scale, in each state; 0: no scales."""
    min_elements: int = 0
    """Tensors smaller than this keep fp32 states (bitsandbytes: 4096)."""
    foreach_temp: float = 1.0
    """Transient bytes of a ``foreach`` step per byte of updated parameters."""
    matrix_only: bool = False
    """Vectors, embeddings and the head are trained with AdamW, as its authors prescribe."""
    factored: bool = False
    """Row and column sums of each matrix instead of a full second moment."""
    rank: int = 0
    """Rank of the projection that the states of a matrix live in; 0: none."""
    paged: bool = False
    """States live in CUDA managed memory, which the driver moves to the host."""
    in_backward: bool = False
    """Each parameter is updated as soon as its gradient is made."""
    one_block: bool = False
    """Trains one layer at a time, with fp32 copies, gradients and states of that layer alone."""
    master: bool = True
    """False where the update is applied to half-precision parameters directly, without fp32 masters."""
    aliases: tuple[str, ...] = ()


_BNB = "bitsandbytes optim: 8-bit blockwise states, fp32 absmax per 256 elements, tensors < 4096 kept fp32 (arXiv 2110.02861)"
_BLOCKWISE = Optimizer("adamw8bit", 2, _BNB, bits=8, block=256, foreach_temp=0.0, min_elements=4096)
_ALL = (
    Optimizer(
        "adamw",
        2,
        "Loshchilov & Hutter, arXiv 1711.05101; torch.optim.AdamW",
        aliases=("adam", "adamw-torch", "adamw_torch", "adamw_torch_fused", "fused-adam", "adamw-apex"),
    ),
    Optimizer("amsgrad", 3, "torch.optim.AdamW(amsgrad=True): max_exp_avg_sq"),
    Optimizer("sgd", 0, "torch.optim.SGD without momentum", foreach_temp=0.0),
    Optimizer("sgdm", 1, "torch.optim.SGD(momentum): one buffer", foreach_temp=0.0, aliases=("sgd-momentum", "momentum")),
    Optimizer("lion", 1, "Chen et al., arXiv 2302.06675: one momentum"),
    Optimizer("adagrad", 1, "torch.optim.Adagrad: one accumulator"),
    Optimizer("adafactor", 0, "Shazeer & Stern, arXiv 1804.04235: row and column sums, no first moment", factored=True),
    replace(_BLOCKWISE, aliases=("adam8bit", "adamw_bnb_8bit", "adamw_8bit", "adamw-8bit", "8bit-adamw")),
    replace(
        _BLOCKWISE,
        name="paged-adamw8bit",
        source=_BNB + "; states in CUDA managed memory",
        paged=True,
        aliases=("paged_adamw_8bit",),
    ),
    Optimizer(
        "paged-adamw",
        2,
        "bitsandbytes paged optimizer: fp32 states in CUDA managed memory",
        foreach_temp=0.0,
        paged=True,
        aliases=("paged_adamw_32bit", "paged-adamw32bit"),
    ),
    replace(
        _BLOCKWISE,
        name="adamw4bit",
        source="torchao.optim.AdamW4bit: 4-bit states, fp32 scale per 128 elements",
        bits=4,
        block=128,
        aliases=("adam4bit",),
    ),
    replace(_BLOCKWISE, name="adamwfp8", source="torchao.optim.AdamWFp8: float8 states, fp32 scale per 256 elements"),
    Optimizer(
        "muon",
        1,
        "Jordan et al. 2024, kellerjordan.github.io/posts/muon; torch.optim.Muon: one momentum for matrices, AdamW for the rest",
        matrix_only=True,
    ),
    Optimizer(
        "galore-adamw",
        2,
        "Zhao et al., arXiv 2403.03507: moments in a rank-r projection of each matrix",
        matrix_only=True,
        rank=128,
        aliases=("galore",),
    ),
    Optimizer(
        "galore-adamw8bit",
        2,
        "arXiv 2403.03507 with 8-bit states",
        bits=8,
        block=256,
        foreach_temp=0.0,
        matrix_only=True,
        rank=128,
        aliases=("galore8bit",),
    ),
    Optimizer(
        "lomo",
        0,
        "Lv et al., arXiv 2306.09782: update fused into the backward pass, no state",
        foreach_temp=0.0,
        in_backward=True,
        master=False,
    ),
    Optimizer(
        "adalomo",
        0,
        "Lv et al., arXiv 2310.10195: factored second moment, update fused into backward",
        factored=True,
        in_backward=True,
        master=False,
    ),
    Optimizer("badam", 2, "Luo et al., arXiv 2404.02827: Adam on one block at a time", one_block=True),
    Optimizer("lora-fa", 2, "Zhang et al., arXiv 2308.03303: A frozen"),
    Optimizer("shampoo", 1, "Anil et al., arXiv 2002.09018: two preconditioners per matrix and momentum", matrix_only=True),
    Optimizer(
        "soap", 2, "Vyas et al., arXiv 2409.11321: Adam moments in the eigenbasis of two preconditioners", matrix_only=True
    ),
    Optimizer("none", 0, "no optimizer (gradients only)", foreach_temp=0.0),
)
OPTIMIZERS: dict[str, Optimizer] = {o.name: o for o in _ALL}
_BY_NAME = {key: o for o in _ALL for key in (o.name, *o.aliases)}


def optimizer(name: str) -> Optimizer:
    """The optimizer of that name or alias; :class:`CatalogError` with near names otherwise."""
    key = name.strip().lower() if isinstance(name, str) else ""
    if loader.has_own("optimizer"):
        from foretell.recipe.own import own_optimizer  # noqa: PLC0415  # only who adds entries pays for reading them

        own = own_optimizer(key)
        if own is not None:
            return own
    for candidate in (key, key.replace("_", "-")):
        if candidate in _BY_NAME:
            return _BY_NAME[candidate]
    raise CatalogError.unknown("optimizer", str(name), OPTIMIZERS)

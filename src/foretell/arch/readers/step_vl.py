"""Step-3.7: a ViT with layer scales and two strided convolutions before the Step-3.5 text trunk.

The class is ``Step3p7ForConditionalGeneration``; it takes the text part from ``text_config`` only,
so keys of the
text part at the top level of a file are ignored (and noted), as the class ignores them.
Source: transformers 5.24.0 ``modeling_step3p7``, ``configuration_step3p7``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import Add, Conv, Linear, Mul, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, mha, widened
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, nested, patches, text_model, tower, wrap


def scaled_layer(hidden: int, mixer: list[Operator], feed: list[Operator]) -> list[Operator]:
    """Pre-norm layer whose two branches are multiplied by learned vectors before they are added."""
    return [
        norm("norm1", hidden, "layer", bias=True, ins="x"),
        *mixer,
        Parameters(name="scale1", shapes=((hidden,),)),
        Mul(name="scaled1", ins=(mixer[-1].name, "scale1"), features=hidden),
        Add(name="add1", ins=("x", "scaled1"), features=hidden),
        norm("norm2", hidden, "layer", bias=True, ins="add1"),
        *feed,
        Parameters(name="scale2", shapes=((hidden,),)),
        Mul(name="scaled2", ins=(feed[-1].name, "scale2"), features=hidden),
        Add(name="add2", ins=("add1", "scaled2"), features=hidden),
    ]


@reader("step3p7")
def step3p7(cfg: Config) -> Architecture:
    """Step-3.7: ties by the top-level flag."""
    text_cfg = nested(cfg, "text_config", model_type="step3p5", force=True)
    text = text_model(text_cfg, tied=cfg.bool("tie_word_embeddings", False))
    v = nested(cfg, "vision_config", model_type="step3p5_vision", force=True)
    hidden = v.int("width", "hidden_size", low=1)
    heads = v.int("heads", "num_attention_heads", low=1)
    depth = v.int("layers", "num_hidden_layers", low=1)
    head_dim = v.divides("num_attention_heads", hidden, heads)
    ffn = widened(v, "mlp_ratio", 8960 / 1536, hidden)
    gh, gw = grid(v)
    rows = gh * gw
    embed = [
        patches("patch_embed", v, channels=v.int("num_channels", low=1), hidden=hidden, positions=rows, bias=False),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
        norm("pre_layernorm", hidden, "layer", bias=True),
    ]
    layer = scaled_layer(
        hidden,
        mha("norm1", hidden=hidden, heads=heads, rotary=head_dim),
        ffn2("norm2", hidden=hidden, ffn=ffn, fn=v.str("hidden_act", "quick_gelu")),
    )
    h1, w1 = (gh + 1) // 2, (gw + 1) // 2
    last = ((h1 + 1) // 2) * ((w1 + 1) // 2)
    down = [
        Conv(name="downsampler1", ins=("x",), c_in=hidden, c_out=2 * hidden, kernel=(3, 3), positions=h1 * w1),
        Conv(name="downsampler2", c_in=2 * hidden, c_out=4 * hidden, kernel=(3, 3), positions=last),
        Linear(name="projector", d_in=4 * hidden, d_out=text.hidden, bias=cfg.bool("projector_bias", False)),
    ]
    towers = [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("vision", layer, depth, width=hidden, positions=rows),
        tower("projector", down, 1, width=hidden, positions=rows, label="projector"),
    ]
    notes: tuple[str, ...] = ()
    if cfg.raw.get("text_config") is None and "hidden_size" in cfg.raw:
        notes = ("text keys at the top level are ignored, as the class ignores them: its defaults are used",)
    return wrap(cfg, text, towers, notes=notes)

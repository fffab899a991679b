"""Llama 4: a ViT with rotary positions and a pixel-shuffle adapter before the mixture-of-experts text trunk.

The class is ``Llama4ForConditionalGeneration`` unless ``architectures`` names ``Llama4ForCausalLM``.
Source: transformers 5.24.0 ``modeling_llama4``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Add, Linear, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, mha, pre_norm
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, nested, pair, text_model, text_only, tower, wrap


@reader("llama4")
def llama4(cfg: Config) -> Architecture:
    """Llama 4: the text part keeps its own head and ties by its own flag."""
    text = text_model(nested(cfg, "text_config", model_type="llama4_text", force=True))
    if text_only(cfg):
        return text
    v = nested(cfg, "vision_config", model_type="llama4_vision_model", force=True)
    hidden, heads = v.int("hidden_size", low=1), v.int("num_attention_heads", low=1)
    depth, ffn = v.int("num_hidden_layers", low=1), v.int("intermediate_size", low=1)
    head_dim = v.divides("num_attention_heads", hidden, heads)
    gh, gw = grid(v)
    rows = gh * gw + 1
    ratio = v.float("pixel_shuffle_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise v.error("pixel_shuffle_ratio", ratio, "more than 0 and at most 1", "correct the value")
    merged = max(1, int(gh * ratio) * int(gw * ratio))
    p_in, p_out = v.int("projector_input_dim", low=1), v.int("projector_output_dim", low=1)
    patch = pair(v, "patch_size")
    embed = [
        Pool(name="unfold", features=v.int("num_channels", low=1) * patch[0] * patch[1], positions=gh * gw),
        Linear(name="patch_embed", d_in=v.int("num_channels", low=1) * patch[0] * patch[1], d_out=hidden),
        Parameters(name="class_embedding", shapes=((hidden,),)),
        Pool(name="tokens", ins=("patch_embed", "class_embedding"), features=hidden, positions=rows),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("tokens", "pos_embed"), features=hidden),
        norm("layernorm_pre", hidden, "layer", bias=True),
    ]
    layer = pre_norm(
        [
            (lambda x: mha(x, hidden=hidden, heads=heads, rotary=head_dim), 0.0),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn), 0.0),
        ],
        hidden=hidden,
    )
    adapter = [
        norm("layernorm_post", hidden, "layer", bias=True, ins="x"),
        Pool(name="pixel_shuffle", features=ffn, positions=merged),
        Linear(name="adapter_fc1", d_in=ffn, d_out=p_in),
        Act(name="adapter_act1", fn="gelu", features=p_in),
        Linear(name="adapter_fc2", d_in=p_out, d_out=p_out),
        Act(name="adapter_act2", fn="gelu", features=p_out),
        Linear(name="projector", d_in=v.int("vision_output_dim", low=1), d_out=text.hidden),
    ]
    towers = [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("vision", layer, depth, width=hidden, positions=rows),
        tower("projector", adapter, 1, width=hidden, positions=rows, label="projector"),
    ]
    return wrap(cfg, text, towers)

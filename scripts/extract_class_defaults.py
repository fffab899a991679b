"""Write ``src/foretell/arch/data/class_defaults.json``: what each model type's configuration class fills in.

A key that a ``config.json`` leaves out means the default of that model type, so the defaults are data.  Run by
a developer after a change of the pinned transformers version::

    python scripts/extract_class_defaults.py

Only keys that can change shapes, precision or memory are kept.  A key that a class computes from others when it
is left out (``head_dim`` from the hidden size, ``layer_types`` from the number of layers ...) is stored as the
class declares it (null), so that a reader computes it too instead of taking the value of the default sizes.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OUT = Path(__file__).parents[1] / "src/foretell/arch/data/class_defaults.json"
DROP = {
    "architectures", "chunk_size_feed_forward", "dtype", "output_attentions", "output_hidden_states", "problem_type",
    "return_dict", "transformers_version", "initializer_range", "eos_token_id", "bos_token_id", "pad_token_id",
    "use_cache", "id2label", "label2id", "_name_or_path", "rope_parameters", "rope_scaling", "initializer_factor",
    "begin_suppress_tokens", "suppress_tokens", "decoder_start_token_id", "task_specific_params", "init_std",
    "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier", "pretraining_tp",
    "ssm_multipliers", "mlp_multipliers", "lm_head_multiplier", "time_step_limit", "time_step_floor",
    "time_step_max", "time_step_min", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps",
    "summary_activation", "summary_type", "summary_use_proj", "summary_last_dropout", "summary_proj_to_labels",
}  # fmt: skip

DERIVED = {
    "activation_sparsity_pattern", "attention_head_dim", "attention_hidden_size", "d_head", "embedding_size",
    "ffn_hidden_size", "full_attn_idxs", "head_dim", "indexer_types", "intermediate_size", "layer_types",
    "layers_block_type", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "linear_value_head_dim", "lru_width", "mamba_d_head", "mamba_dt_rank", "mlp_layer_types", "moe_layers", "no_rope_layers",
    "num_attention_heads_per_layer", "num_decoder_layers", "num_key_value_heads", "num_kv_heads",
    "num_sliding_attention_heads", "output_hidden_size", "pooler_output_size", "qk_head_dim", "time_step_rank",
    "v_head_dim", "word_embed_proj_dim",
}  # fmt: skip


def keep(value: dict[str, Any], config: Any = None) -> dict[str, Any]:
    """The structural part of one configuration, nested configurations included."""
    out: dict[str, Any] = {}
    declared = {f.name: f.default for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else {}
    for key, item in value.items():
        if key in DROP or key.endswith(("token_id", "token_index", "loss_coefficient", "_cost")):
            continue
        if isinstance(item, dict):
            out[key] = keep(item, vars(config).get(key) if config is not None else None)
            spec = getattr(type(config), "sub_configs_defaults", {}).get(key)
            given = getattr(spec, "init_kwargs", None) or {}  # a wrapper's own values for its parts: not computed
            out[key] |= {k: item[k] for k in given if k in out[key] and not isinstance(item[k], dict)}
        else:
            default = declared.get(key, item)
            scalar = default is None or isinstance(default, int | float | str)
            out[key] = default if key in DERIVED and scalar else item
    return out


def main() -> None:
    """Write the table of every configuration class that can be built without arguments."""
    table: dict[str, Any] = {}
    skipped: list[str] = []
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[model_type]()
            item = keep(json.loads(config.to_json_string(use_diff=False)), config)
        except Exception:  # noqa: BLE001  # a class that cannot be built without arguments or an optional dependency
            skipped.append(model_type)
            continue
        item["model_type"] = model_type
        aliases = {k: v for k, v in getattr(config, "attribute_map", {}).items() if k not in DROP}
        if aliases:
            item["__aliases__"] = aliases
        table[model_type] = item
    OUT.write_text(
        "{\n"
        f'"__source__": "transformers {transformers.__version__} configuration classes",\n'
        + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in table.items())
        + "\n}\n"
    )
    print(len(table), "model types;", len(skipped), "skipped:", " ".join(skipped))


if __name__ == "__main__":
    main()

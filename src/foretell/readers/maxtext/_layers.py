"""The layers of a MaxText configuration: command, model, run and what they are based on; defaults where none says it.

Source: AI-Hypercomputer/maxtext e591f30 ``src/maxtext/configs/pyconfig.py`` _initialize_pydantic, ``configs/base.yml``,
``src/maxtext/utils/globals.py`` HF_IDS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foretell.errors import ConfigError
from foretell.readers._document import Document, Found, parse_document
from foretell.readers._omegaconf import Values

if TYPE_CHECKING:
    from foretell.readers._reading import Sources

__all__ = ["DEFAULT", "MODEL_NAMES", "NAMES", "VERSION", "Layers", "describes_model", "is_base", "layers"]

VERSION: Final = "e591f30"
DEFAULT: Final = f"MaxText's base.yml ({VERSION})"
_SHAPE: Final = ("base_emb_dim", "base_num_decoder_layers", "decoder_block", "vocab_size")
_RUN: Final = ("per_device_batch_size", "base_config", "run_name", "steps", "hardware", "base_output_directory")
_DEEP: Final = 8
MODEL_NAMES: Final = ("student_overrides.model_name", "model_name")
"""Keys that name the model that trains: of a distillation, the student."""
DEFAULTS: Final[dict[str, Any]] = {
    "decoder_block": "llama2", "global_parameter_scale": 1, "base_emb_dim": 2048, "base_num_query_heads": 16,
    "base_num_kv_heads": 16, "base_mlp_dim": 7168, "base_num_decoder_layers": 16, "head_dim": 128, "vocab_size": 32000,
    "logits_via_embedding": False, "num_experts": 1, "num_experts_per_tok": 1, "base_moe_mlp_dim": -1, "shared_experts": 0,
    "first_num_dense_layers": 0, "q_lora_rank": 0, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "indexer_n_heads": 64, "indexer_head_dim": 128, "indexer_topk": 2048, "sliding_window_size": 0,
    "interleave_moe_layer_step": 1, "nope_layer_interval": -1, "trainable_position_size": -1, "use_qk_norm": False,
    "attention_bias": False, "mlp_bias": False, "gdn_conv_kernel_dim": 4, "gdn_key_head_dim": 128, "gdn_value_head_dim": 128,
    "gdn_num_key_heads": 16, "gdn_num_value_heads": 32, "inhomogeneous_layer_cycle_interval": 1, "global_head_dim": 0,
    "global_num_kv_heads": 0, "share_kv_projections": False, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False, "mhc_expansion_rate": 1, "o_groups": 0, "o_lora_rank": 0,
    "per_device_batch_size": 12.0, "max_target_length": 2048, "gradient_accumulation_steps": 1, "remat_policy": "full",
    "opt_type": "adamw", "attention": "autoselected", "chunk_attn_window_size": 0, "partial_rotary_factor": 1.0,
    "attention_output_dim": -1, "moe_expert_input_dim": -1, "num_layers_per_pipeline_stage": 1,
}  # fmt: skip
"""Values of ``base.yml`` that decide something here."""

NAMES: Final = {
    "gemma-2b": "gemma-2b", "gemma-7b": "gemma-7b", "gemma2-2b": "gemma-2-2b", "gemma2-9b": "gemma-2-9b",
    "gemma2-27b": "gemma-2-27b", "gemma3-4b": "gemma-3-4b", "gemma3-12b": "gemma-3-12b", "gemma3-27b": "gemma-3-27b",
    "gemma4-26b": "gemma-4-26b-a4b", "gemma4-31b": "gemma-4-31b", "gemma4-e2b": "google/gemma-4-E2B-it",
    "gemma4-e4b": "google/gemma-4-E4B-it", "llama2-7b": "llama-2-7b", "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b", "llama3-8b": "llama-3-8b", "llama3-70b": "llama-3-70b", "llama3-405b": "llama-3.1-405b",
    "llama3.1-8b": "llama-3.1-8b", "llama3.1-70b": "llama-3.1-70b", "llama3.1-405b": "llama-3.1-405b",
    "llama3.3-70b": "llama-3.3-70b", "llama4-17b-16e": "llama-4-scout", "llama4-17b-128e": "llama-4-maverick",
    "mistral-7b": "mistral-7b-v0.1", "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b",
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2", "deepseek3-671b": "deepseek-v3",
    "deepseek3-671b-2dfsdp": "deepseek-v3", "deepseek3-671b-batchsplit": "deepseek-v3", "deepseek3.2-671b": "deepseek-v3.2",
    "deepseek4-284b": "deepseek-v4-flash", "kimi-k2-1t": "kimi-k2", "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": "gpt-oss-120b", "gpt3-175b": "gpt-3-175b", "qwen2.5-1.5b": "qwen2.5-1.5b", "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-14b": "qwen2.5-14b", "qwen3-0.6b": "qwen3-0.6b", "qwen3-1.7b": "qwen3-1.7b", "qwen3-1.7b-base": "qwen3-1.7b",
    "qwen3-4b": "qwen3-4b", "qwen3-4b-base": "qwen3-4b", "qwen3-4b-thinking-2507": "qwen3-4b", "qwen3-8b": "qwen3-8b",
    "qwen3-8b-base": "qwen3-8b", "qwen3-14b": "qwen3-14b", "qwen3-14b-base": "qwen3-14b", "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b", "qwen3-30b-a3b-base": "qwen3-30b-a3b", "qwen3-235b-a22b": "qwen3-235b-a22b",
    "qwen3-480b-a35b": "qwen3-coder-480b-a35b", "qwen3-next-80b-a3b": "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b": "qwen3.5-35b-a3b", "qwen3.5-397b-a17b": "qwen3.5-397b-a17b", "qwen3-vl-2b": "Qwen/Qwen3-VL-2B-Instruct",
    "qwen3-vl-4b": "Qwen/Qwen3-VL-4B-Instruct", "qwen3-vl-30b-a3b": "Qwen/Qwen3-VL-30B-A3B-Instruct",
    "olmo3-7b": "allenai/Olmo-3-1025-7B", "olmo3-7b-pt": "allenai/Olmo-3-1025-7B", "olmo3-32b": "allenai/Olmo-3-32B-Think",
}  # fmt: skip
"""``model_name``, where its file is not here, as the model's own name."""


@dataclass(frozen=True)
class Layers(Values):
    """Documents by precedence, with MaxText's defaults below them."""

    model: Document | None = None
    """The file of the model that is named."""
    run: Document | None = None
    """The file of the run; None where there is only a model's."""

    def get(self, *keys: str) -> Found | None:
        """Return the first value; the word None is none (``pyconfig.py`` _prepare_for_pydantic)."""
        found = super().get(*keys)
        none = found is not None and found.node.scalar and found.node.raw.strip().casefold() == "none"
        return None if none else found

    def whole(self, key: str, *, minimum: int = 0) -> int:
        """Return a whole number, or the default; -1 stands for none."""
        found = self.get(key)
        if found is None:
            return int(DEFAULTS[key])
        return -1 if found.node.value == -1 else found.whole(minimum=minimum)

    def flag(self, key: str) -> bool:
        """Return true or false, or the default."""
        found = self.get(key)
        return bool(DEFAULTS[key]) if found is None else found.flag()

    def word(self, key: str) -> str:
        """Return a word in small letters, or the default."""
        found = self.get(key)
        return str(DEFAULTS[key]) if found is None else found.text().strip().casefold()


def describes_model(document: Document) -> bool:
    """Whether a file holds a model's shape, and no run."""
    return any(document.has(key) for key in _SHAPE) and not any(document.has(key) for key in _RUN)


def is_base(document: Document) -> bool:
    """Whether it is ``base.yml``, or as complete."""
    return document.has("ici_fsdp_parallelism") and document.has("remat_policy") and document.has("logical_axis_rules")


def layers(sources: Sources, notes: list[str]) -> Layers:
    """Put the documents in order: command, model, run, and what each is based on."""
    given = [sources.main, *sources.others]
    files = [document for document in given if document.form != "arguments" and not describes_model(document)]
    runs = [document for document in files if document is sources.main or document.has("base_config") or is_base(document)]
    runs.sort(key=lambda document: not document.has("base_config"))
    chain: list[Document] = []
    for document in runs:
        _based(sources, document, chain, notes, 0)
    command = sources.main if sources.main.form == "arguments" else sources.overrides
    head = [] if command is None else [command]
    values = Values((*head, *chain)) if head or chain else Values((sources.main,))
    shapes = (document for document in given if document.form != "arguments" and describes_model(document))
    model = next(shapes, None) or _named(sources, values)
    order = (*head, *([] if model is None else [model]), *chain)
    return Layers(tuple(dict.fromkeys(order)), "", model, runs[0] if runs else command)


def _based(sources: Sources, document: Document, chain: list[Document], notes: list[str], deep: int) -> None:
    """Add a file and the one that it is based on."""
    if document in chain or deep > _DEEP:
        return
    chain.append(document)
    found = document.get("base_config")
    if found is None:
        if not is_base(document):
            notes.append(f"{document.path} is read with the defaults of {DEFAULT}")
        return
    base = _beside(sources, found.text(), found) or next((one for one in sources.others if is_base(one)), None)
    if base is None:
        notes.append(f"{found.where}: {found.text()} is not here: the defaults of {DEFAULT} are taken")
        return
    _based(sources, base, chain, notes, deep + 1)


def _named(sources: Sources, values: Values) -> Document | None:
    """Return the file of the model that ``model_name`` names, from the folders where MaxText looks for it."""
    found = values.get(*MODEL_NAMES)
    if found is None or found.text() == "default":
        return None
    return _beside(sources, f"models/{found.text().replace('-Instruct', '')}.yml", found)


def _beside(sources: Sources, name: str, found: Found) -> Document | None:
    """Open a file beside another, or up to two folders above it; None where there is none that may be read."""
    for place in (name, f"../{name}", f"../../{name}"):
        try:
            path = sources.files.find(place, found.document.path, found.where)
        except ConfigError:
            continue
        if path is None:
            continue
        known = next((document for document in sources.documents if document.path == path), None)
        if known is None:
            known = parse_document(sources.files.text(path), path)
            sources.opened.append(known)
        return known
    return None

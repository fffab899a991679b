"""Jobs from a model's configuration: the class of transformers, diffusers or timm that it names, a batch, and a loss."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from foretell.errors import ConfigError, InputError
from foretell.trace.engine.images import diffusers_model, timm_model
from foretell.trace.engine.layers import blocks_of
from foretell.trace.engine.libraries import library, torchvision
from foretell.trace.engine.quantized import quantize
from foretell.trace.engine.sharding import shard
from foretell.trace.job import Job
from foretell.trace.request import ModelRequest

__all__ = ["DTYPES", "OPTIMIZERS", "job_of", "prepare"]

_SIDE = 224
"""Pixels of an image's side where the configuration says none."""
DTYPES = {
    # precision -> (dtype of the weights, dtype of autocast)
    "bf16": (torch.float32, "bfloat16"),
    "fp16": (torch.float32, "float16"),
    "fp32": (torch.float32, None),
    "bf16-true": (torch.bfloat16, None),
    "fp16-true": (torch.float16, None),
}


def prepare(request: ModelRequest) -> None:
    """Import the library of a model, before tensors are fake.

    Raises:
        ExtraError: it is not installed.

    """
    content = request.content
    name = "timm" if "timm" in content else "diffusers" if "_class_name" in content else "transformers"
    if torch.version.cuda is None:  # transformers and diffusers import it too where it is there
        torchvision()
    found = library(name)
    if name == "transformers":
        found.logging.set_verbosity_error()
        importlib.import_module("transformers.initialization")
        _class(found, _config(found, request), request.where)  # brings the model's own module
    elif name == "diffusers":
        found.utils.logging.set_verbosity_error()
    if request.lora_rank is not None:
        library("peft")


def job_of(request: ModelRequest, world: int = 1, notes: list[str] | None = None) -> Job:
    """Return the job of training the model that a configuration describes; ``notes`` takes what must be known of it.

    Raises:
        ConfigError: no class is named, or none of that name is installed.
        ExtraError: its library is not installed.
        InputError: an option that the model does not have.

    """
    notes = [] if notes is None else notes
    dtype, autocast = DTYPES[request.precision]
    if "timm" in request.content:
        model, batch, loss = timm_model(request, dtype)
    elif "_class_name" in request.content:
        model, batch, loss = diffusers_model(request, dtype)
    else:
        model, batch, loss = _transformers(request, notes)
    model.train()
    if request.lora_rank is not None:
        model = _adapted(model, request)
    _checkpoint(model, request)
    job = Job(model, batch, loss, OPTIMIZERS[request.optimizer], None, request.accumulate, autocast, request.clip)
    shard(job, request.sharding, world, blocks=blocks_of(model), mixed=autocast)
    return job


# -- transformers -------------------------------------------------------------------------------------------


def _transformers(request: ModelRequest, notes: list[str]) -> tuple[Any, Any, Any]:
    transformers = library("transformers")
    initialization = importlib.import_module("transformers.initialization")
    dtype, _ = DTYPES[request.precision]
    config = _config(transformers, request)
    cls = _class(transformers, config, request.where)
    for name in ("pad_token_id", "decoder_start_token_id"):  # a batch of zeros needs them, whichever they are
        if getattr(config, name, None) is None and getattr(config, "is_encoder_decoder", False):
            setattr(config, name, 0)
    attention = _attention(cls, request, notes)
    with initialization.no_init_weights():
        model = cls._from_config(config, dtype=dtype, attn_implementation=attention)
    model.tie_weights()
    notes += _written_out(model)
    make = _inputs(model, config, request, notes)
    return model, make, _transformers_loss(notes)


def _config(library: Any, request: ModelRequest) -> Any:
    """Return the configuration object.

    Raises:
        ConfigError: of a type that this version of transformers does not have.

    """
    kind = request.content.get("model_type")
    known = library.models.auto.configuration_auto.CONFIG_MAPPING
    if kind not in known:
        raise ConfigError("is no model type of transformers", field="model_type", value=kind, where=request.where)
    rest = {k: v for k, v in request.content.items() if k not in ("model_type", "quantization_config", "auto_map")}
    config = known[kind](**rest)
    if request.experts is not None:
        config._experts_implementation = request.experts
    return config


def _attention(cls: Any, request: ModelRequest, notes: list[str]) -> str:
    """Return the implementation of attention: what was asked for, or ``eager`` where the class has no other."""
    if request.attention == "sdpa" and not getattr(cls, "_supports_sdpa", True):
        notes.append(f"{cls.__name__} has no SDPA in transformers: eager attention was traced")
        return "eager"
    return request.attention


_SCANS = {
    "mamba_inner_fn": "mamba_ssm",
    "mamba_chunk_scan_combined": "mamba_ssm",
    "chunk_gated_delta_rule": "fla",
    "chunk_kda": "fla",
}
"""Function of a model's module -> the package that has a kernel for it."""


def _written_out(model: Any) -> list[str]:
    """Say which recurrences run as transformers writes them out, because the package that has a kernel for them is not here."""
    module = sys.modules[type(model).__module__]
    missing = [name for name, package in _SCANS.items() if hasattr(module, name) and importlib.util.find_spec(package) is None]
    return [
        f"{_SCANS[name]} is not installed: {name} was traced as transformers writes it out, which may loop over the tokens and "
        "keeps other tensors than the kernel"
        for name in missing
    ]


def _class(library: Any, config: Any, where: str) -> Any:
    for name in config.architectures or ():
        cls = getattr(library, name, None)
        if cls is not None:
            return cls
    mapping = library.models.auto.modeling_auto
    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING",
                  "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "MODEL_MAPPING"):  # fmt: skip
        found = getattr(mapping, table).get(type(config), None)
        if found is not None:
            return found
    raise ConfigError("names no class that transformers has", field="architectures", value=config.architectures, where=where)


def _inputs(model: Any, config: Any, request: ModelRequest, notes: list[str]) -> Callable[[], dict[str, Any]]:
    """Return what makes a batch for a model of transformers, from its forward's own parameters."""
    takes = inspect.signature(model.forward).parameters
    name = type(model).__name__
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    b, s = request.micro_batch, _tokens(text, request, notes)
    dtype = next(model.parameters()).dtype

    def batch() -> dict[str, Any]:
        made: dict[str, Any] = {}
        if model.main_input_name == "input_features":
            made["input_features"] = torch.zeros(b, config.num_mel_bins, 2 * config.max_source_positions, dtype=dtype)
        elif model.main_input_name == "pixel_values" or ("pixel_values" in takes and "return_loss" in takes):
            made["pixel_values"] = _pixels(config, request, dtype)
        if "input_ids" in takes and model.main_input_name != "input_features":
            made["input_ids"] = torch.zeros(b, s, dtype=torch.long)
        if "return_loss" in takes:
            made["return_loss"] = True
        elif "labels" in takes:
            one = "Classification" in name
            made["labels"] = torch.zeros(b, dtype=torch.long) if one else torch.zeros(b, _label_tokens(text, s), dtype=torch.long)
        if "use_cache" in takes:
            made["use_cache"] = False
        return made

    return batch


def _tokens(config: Any, request: ModelRequest, notes: list[str]) -> int:
    """Return the sequence length: what was asked for, or less where learned positions end."""
    most: Any = getattr(config, "max_position_embeddings", None)
    learned = getattr(config, "rope_parameters", None) is None and isinstance(most, int) and most > 0
    if not learned or request.seq_len <= most:
        return request.seq_len
    notes.append(f"the model has {most} positions: sequences of {most} tokens were traced, not of {request.seq_len}")
    return int(most)


def _label_tokens(config: Any, tokens: int) -> int:
    return min(tokens, getattr(config, "max_target_positions", None) or tokens)


def _pixels(config: Any, request: ModelRequest, dtype: torch.dtype) -> torch.Tensor:
    inner = getattr(config, "vision_config", config)
    size = request.image_size or getattr(inner, "image_size", None) or _SIDE
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return torch.zeros(request.micro_batch, getattr(inner, "num_channels", 3) or 3, height, width, dtype=dtype)


def _transformers_loss(notes: list[str]) -> Any:
    """The model's own loss; a model without one is trained on the mean of its output, which is said."""

    def loss(model: Any, batch: dict[str, Any]) -> Any:
        out = model(**batch)
        if getattr(out, "loss", None) is not None:
            return out.loss
        note = f"{type(model).__name__} has no loss of its own: the mean of its first output stands for one"
        notes.append(note)
        return out[0].float().mean()

    return loss


# -- recipe -------------------------------------------------------------------------------------------------


def _checkpoint(model: Any, request: ModelRequest) -> None:
    if request.recompute == "none":
        return
    reentrant = request.recompute == "full-reentrant"
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, "gradient_checkpointing_enable", None)
    if enable is not None:
        enable({"use_reentrant": reentrant})
        if request.lora_rank is not None and hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
    elif hasattr(model, "enable_gradient_checkpointing"):
        model.enable_gradient_checkpointing()
    elif hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(True)
    else:
        raise InputError("is not offered by this model", field="recompute", value=request.recompute, allowed=["none"])


def _adapted(model: Any, request: ModelRequest) -> Any:
    """Freeze the base, in four bits if asked, and put adapters beside its matrices."""
    peft = library("peft")
    if request.quantization == "nf4":
        quantize(model, keep=("lm_head",))
    targets = list(request.lora_targets) if request.lora_targets else "all-linear"
    config = peft.LoraConfig(r=request.lora_rank, target_modules=targets)
    return peft.get_peft_model(model, config)


OPTIMIZERS: dict[str, Callable[[Any], Any] | None] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "adamw-forloop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-4),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4),
    "none": None,
}
"""Name -> what makes an optimizer of parameters."""

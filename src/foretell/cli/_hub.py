"""Models named as on the Hugging Face hub: from the catalog, a folder, the local cache, or (only when asked) the hub itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from foretell.errors import CatalogError, ExtraError, InputError

__all__ = ["known_model"]

_ID: Final = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


def known_model(model: Any, *, online: bool = False) -> Any:  # a name, or the content of a config.json
    """Return what a reference leads to: itself, or the config.json of the local cache or (``online``) of the hub.

    Raises CatalogError where none of them knows it, ExtraError where the hub's library is not installed.
    """
    from foretell.arch import load_model  # noqa: PLC0415  # 60 ms

    if not isinstance(model, str):
        return model
    try:
        load_model(model)
    except CatalogError as error:
        if error.field != "model" or not _ID.fullmatch(model):
            raise
        found = _cached(model) or (_fetched(model) if online else None)
        if found is None:
            error.hint = "Give its config.json: --model path/config.json; or --online fetches it from the hub (extra: hub)"
            raise
        return found
    return model


def _cached(name: str) -> str | None:
    """Return the newest config.json of a model in the local hub cache (huggingface_hub, "Understand caching")."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    try:
        found = [*(cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json")]
        return str(max(found, key=lambda path: path.stat().st_mtime)) if found else None
    except OSError:
        return None


def _fetched(name: str) -> str:
    """Download a model's config.json, and nothing else."""
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415  # an extra
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415
    except ImportError as error:
        raise ExtraError.missing("hub", "fetching a model's config.json from the hub") from error
    try:
        return str(hf_hub_download(name, "config.json"))
    except (HfHubHTTPError, OSError, ValueError) as error:
        said = str(error).strip().split("\n")[0][:160]
        raise InputError(f"could not be fetched from the hub: {said}", field="model", value=name) from error

"""Identifiers of checkpoints by content, independent of their location.

`weights_id` covers weights, config and tokenizer; lineage, pairing and baselines use it. `fingerprint` adds
everything else that changes a model's numerics; responses are never reused across fingerprints.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError, canonical_json, content_hash, file_hash
from evalsuite.models.safetensors_index import stored_tensors

_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
"""Config keys that may change when the same model is saved again."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)


def weights_id(path: Path) -> str:
    """Hash the checkpoint in a folder or GGUF file to 16 hex digits.

    Covers every tensor's name, stored dtype, shape and bytes (independent of sharding), the config, the
    end-of-sequence tokens, and the tokenizer's files; independent of the dtype that the model is loaded in.

    Raises:
        CheckpointError: weights or config are missing, truncated or unreadable.
    """
    path = Path(path)
    if path.is_file():
        return file_hash(path)[:16]
    digest = hashlib.sha256()
    for tensor in stored_tensors(path):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
        for chunk in tensor.chunks():
            digest.update(chunk)
    digest.update(canonical_json(_stable_config(path)).encode())
    for name in _TOKENIZER_FILES:
        if (path / name).is_file():
            digest.update(f"{name} {_tokenizer_hash(path / name)}\n".encode())
    return digest.hexdigest()[:16]


def fingerprint(weights: str, dtype: str, engine: str, versions: dict[str, str]) -> str:
    """Hash everything that determines a checkpoint's numerics to 16 hex digits.

    Args:
        weights: its `weights_id`.
        dtype: dtype of the computation, such as `bfloat16`.
        engine: the engine, with those of its settings that change numerics.
        versions: versions of the packages that change numerics.
    """
    return content_hash({"weights": weights, "dtype": dtype, "engine": engine, "versions": versions})


def _stable_config(folder: Path) -> dict[str, Any]:
    """Config and end-of-sequence tokens, without volatile keys."""
    settings: dict[str, Any] = {"config": _without_volatile(_read_json(folder / "config.json"))}
    if (folder / "generation_config.json").is_file():
        settings["eos_token_id"] = _read_json(folder / "generation_config.json").get("eos_token_id")
    return settings


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; a checkpoint is a Hugging Face folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected a JSON object")
    return value


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(inner) for key, inner in value.items() if key not in _VOLATILE}
    return [_without_volatile(inner) for inner in value] if isinstance(value, list) else value


def _tokenizer_hash(file: Path) -> str:
    # tokenizer_config.json includes the folder that it was loaded from.
    if file.name == "tokenizer_config.json":
        return content_hash(_without_volatile(_read_json(file)))
    return file_hash(file)

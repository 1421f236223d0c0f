"""Names for checkpoints that depend on what they are and not on where they lie.

`weights_id` names weights, config and tokenizer: lineage, pairing and baselines use it. `fingerprint` adds
what changes the numbers that come out: no answer is ever served across fingerprints.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError, canonical_json, content_hash, file_hash
from evalsuite.models.weights import stored_tensors

_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
"""Config keys that change when the same model is saved again."""

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
    """Name the checkpoint in a folder or GGUF file: 16 hex digits.

    Covers every tensor by name, stored dtype, shape and bytes (not by shard), the config, the tokens that
    end a text, and the tokenizer's files. The dtype that a model is later loaded in plays no part.

    Raises:
        CheckpointError: weights or config are missing, truncated or unreadable.
    """
    path = Path(path)
    if path.is_file():
        return file_hash(path)[:16]
    digest = hashlib.sha256()
    for tensor in stored_tensors(path):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
        for piece in tensor.pieces():
            digest.update(piece)
    digest.update(canonical_json(_settings(path)).encode())
    for name in _TOKENIZER_FILES:
        if (path / name).is_file():
            digest.update(f"{name} {_tokenizer_file(path / name)}\n".encode())
    return digest.hexdigest()[:16]


def fingerprint(weights: str, dtype: str, engine: str, versions: dict[str, str]) -> str:
    """Name the numbers that a checkpoint gives under one engine: 16 hex digits.

    Args:
        weights: its `weights_id`.
        dtype: what it computes in, such as `bfloat16`.
        engine: the engine and what of its settings changes numbers.
        versions: of the packages that change numbers.
    """
    return content_hash({"weights": weights, "dtype": dtype, "engine": engine, "versions": versions})


def _settings(folder: Path) -> dict[str, Any]:
    """Config and end-of-text tokens, without what changes from one save to the next."""
    settings: dict[str, Any] = {"config": _stable(_json(folder / "config.json"))}
    if (folder / "generation_config.json").is_file():
        settings["eos_token_id"] = _json(folder / "generation_config.json").get("eos_token_id")
    return settings


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; a checkpoint is a Hugging Face folder") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{file}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected a JSON object")
    return value


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stable(inner) for key, inner in value.items() if key not in _VOLATILE}
    return [_stable(inner) for inner in value] if isinstance(value, list) else value


def _tokenizer_file(file: Path) -> str:
    # The settings file names the folder that it was loaded from; the others are data.
    return content_hash(_stable(_json(file))) if file.name == "tokenizer_config.json" else file_hash(file)

"""Identifiers of checkpoints by content, independent of their location.

`weights_id` covers weights, config and tokenizer; lineage, pairing and baselines use it. `fingerprint` adds
everything else that changes a model's numerics, our own source included; responses are never reused across
fingerprints.
"""

import ast
import functools
import hashlib
import inspect
import math
import re
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError, canonical_json, content_hash, file_hash
from evalsuite.models.checkpoints.config import STUDENT_TYPE, read_object
from evalsuite.models.checkpoints.once_per_file import kept_on_disk
from evalsuite.models.checkpoints.safetensors_index import stored_tensors

STUDENT_SOURCE = ("mixers", "ops", "decoder")
"""Modules and folders of this package that compute a student's layers, whatever engine runs them."""

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
    path, digest = Path(path), hashlib.sha256()
    try:
        if path.is_file():
            return file_hash(path)[:16]
        for tensor in stored_tensors(path):
            digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}\n".encode())
            for chunk in tensor.chunks():
                digest.update(chunk)
        digest.update(canonical_json(_stable_config(path)).encode())
        digest.update(_tokenizer_lines(path).encode())
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()[:16]


def tokenizer_files_id(folder: Path) -> str:
    """Hash the files of a checkpoint's tokenizer to 16 hex digits.

    Raises:
        CheckpointError: one of them cannot be read.
    """
    try:
        return hashlib.sha256(_tokenizer_lines(folder).encode()).hexdigest()[:16]
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read ({error.strerror})") from error


def _tokenizer_lines(folder: Path) -> str:
    files = (folder / name for name in _TOKENIZER_FILES)
    return "".join(f"{file.name} {_tokenizer_hash(file)}\n" for file in files if file.is_file())


def fingerprint(weights: str, dtype: str, engine: str, versions: dict[str, str]) -> str:
    """Hash everything that determines a checkpoint's numerics to 16 hex digits.

    Args:
        weights: its `weights_id`.
        dtype: dtype of the computation, such as `bfloat16`.
        engine: the engine, with those of its settings that change numerics.
        versions: versions of the packages that change numerics, and the `source_hash` of our own code.
    """
    return content_hash({"weights": weights, "dtype": dtype, "engine": engine, "versions": versions})


def plugin_versions(config: Any) -> dict[str, str]:
    """The packages that define a student's mixers and their code, for its `fingerprint`; empty if ours."""
    if not config.plugins:
        return {}
    from evalsuite.models.mixers import MIXERS

    # A package that is being developed changes without its version.
    files = [Path(inspect.getfile(MIXERS[name])) for name in sorted(config.mixer_packages)]
    sources = [source_hash(file.name, root=file.parent) for file in files]
    return {"mixers": config.plugins, "mixer_source": content_hash(sources)}


@functools.cache
def source_hash(*parts: str, root: Path = Path(__file__).parents[1]) -> str:
    """Hash the code of modules and folders to 16 hex digits, equal on every supported Python.

    Comments, docstrings and layout are left out, so that rewording them discards no responses.

    Args:
        parts: files or folders below `root`.
        root: this package.
    """
    files = {
        file
        for part in parts
        for file in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))
    }
    # Benchmarks lie in the folders of the engines that they measure, and compute no responses.
    computing = [file for file in files if file.name != "benchmark.py"]
    # To parse them takes a process a second.
    return kept_on_disk(
        "source",
        [*computing, Path(__file__)],
        lambda: content_hash(
            {file.relative_to(root).as_posix(): _code(ast.parse(file.read_text())) for file in computing}
        ),
    )


def _code(node: Any) -> Any:
    """Return a syntax tree as JSON, without strings that stand alone (docstrings).

    `ast.dump` would do, but prints empty fields in some versions of Python only.
    """
    if isinstance(node, list):
        return [_code(inner) for inner in node if not _is_docstring(inner)]
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else repr(node.value)
        return [type(node.value).__name__, text]
    if isinstance(node, ast.AST):
        fields = ((name, _code(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, {name: value for name, value in fields if value not in (None, [])}]
    return node


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def _stable_config(folder: Path) -> dict[str, Any]:
    """Config and end-of-sequence tokens, without volatile keys."""
    config = _without_volatile(read_object(folder / "config.json"))
    if config.get("model_type") == STUDENT_TYPE:
        # It names the few lines by which transformers finds evalsuite, so that students saved without it have
        # the same id. In other models it names the code that computes them.
        config.pop("auto_map", None)
    settings: dict[str, Any] = {"config": config}
    if (folder / "generation_config.json").is_file():
        settings["eos_token_id"] = read_object(folder / "generation_config.json").get("eos_token_id")
    return settings


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(inner) for key, inner in value.items() if key not in _VOLATILE}
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # Mamba2's config has an infinite limit, which canonical JSON refuses.
    return [_without_volatile(inner) for inner in value] if isinstance(value, list) else value


_CALL = (
    "max_length",
    "stride",
    "truncation_strategy",
    "truncation_side",
    "padding_side",
    "pad_to_multiple_of",
    "pad_token_type_id",
)
"""Keys of tokenizer_config.json in which transformers stores truncation and padding of a tokenizer.json."""
_CALL_STATE = re.compile(rb'("(?:truncation|padding)"\s*:\s*)\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')
"""Truncation and padding at the head of a tokenizer.json."""


def _tokenizer_hash(file: Path) -> str:
    """Hash a tokenizer file without the state of the last call, which never applies (see `tokenizers`)."""
    # tokenizer_config.json includes the folder that it was loaded from.
    if file.name == "tokenizer_config.json":
        config = _without_volatile(read_object(file))
        if {"truncation_strategy", "pad_token_type_id"} & config.keys():
            config = {key: value for key, value in config.items() if key not in _CALL}
        return content_hash(config)
    if file.name == "tokenizer.json":
        head, mark, rest = file.read_bytes().partition(b'"added_tokens"')
        return hashlib.sha256(_CALL_STATE.sub(rb"\1null", head) + mark + rest).hexdigest()
    return file_hash(file)

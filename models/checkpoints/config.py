"""Validation of a checkpoint's JSON files before transformers reads them.

transformers accepts most values and fails later, somewhere else; here the file and the field are named.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError, nearest, parse_json

STUDENT_TYPE = "evalsuite_student"
"""`model_type` of students, as `StudentConfig` has it."""
MAX_SIZE = 2**31
"""No size of a model reaches it; larger ones overflow."""

_SIZES = ("hidden_size", "num_hidden_layers", "vocab_size")
_OTHER_SIZES = (
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
)
"""Sizes that some architectures state per layer, as a list, or set to null."""
_FRACTIONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "initializer_range")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_GROUPS = ("text_config", "teacher")


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object of a checkpoint.

    Raises:
        CheckpointError: the file is missing, cannot be read, is not JSON or nested too deeply, or is not an
            object.
    """
    try:
        value = parse_json(file.read_bytes(), allow_nan=True)
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; a checkpoint is a Hugging Face folder") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not JSON ({error})") from error
    except RecursionError:
        raise CheckpointError(f"{file}: nested too deeply for a file of a checkpoint") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def check_config(file: Path) -> None:
    """Check sizes, heads, activation, dtype and mixers of a `config.json`.

    Raises:
        CheckpointError: a field of the wrong type or outside its range; the message names file, field and
            value.
    """
    config = read_object(file)
    if not isinstance(config.get("model_type"), str):
        raise _invalid(file, "model_type", config.get("model_type"), "must name an architecture")
    if config["model_type"] == STUDENT_TYPE:
        _check_student(file, config)
    _check_fields(file, config, "")


def _check_fields(file: Path, config: Mapping[str, Any], prefix: str) -> None:
    for name in (*_SIZES, *_OTHER_SIZES):
        value: Any = config.get(name)
        if name not in config or (value is None and name in _OTHER_SIZES):
            continue
        per_layer = name in _OTHER_SIZES and isinstance(value, list) and value
        if not all(_is_size(each) for each in (value if per_layer else [value])):
            raise _invalid(file, prefix + name, value, "must be a positive integer")
    for name in _FRACTIONS:
        if config.get(name) is not None and not _is_fraction(config[name]):
            raise _invalid(file, prefix + name, config[name], "must be a number of at least 0")
    # Torch and transformers take seconds to import, and readers of the other names here do without.
    from transformers.activations import ACT2FN

    for name in _ACTIVATIONS:
        value = config.get(name)
        if value is not None and (not isinstance(value, str) or value not in ACT2FN):
            hint = nearest(value, ACT2FN) if isinstance(value, str) else ""
            raise _invalid(file, prefix + name, value, f"unknown activation{hint}")
    for name in ("dtype", "torch_dtype"):
        value = config.get(name)
        if value is not None and not (isinstance(value, str) and _is_dtype(value)):
            raise _invalid(file, prefix + name, value, "not a torch dtype, such as bfloat16")
    _check_heads(file, config, prefix)
    for group in _GROUPS:
        if isinstance(config.get(group), dict):
            _check_fields(file, config[group], f"{prefix}{group}.")


def _check_heads(file: Path, config: Mapping[str, Any], prefix: str) -> None:
    width, heads, kv_heads = (
        config.get(name) for name in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    if isinstance(width, int) and isinstance(heads, int) and config.get("head_dim") is None and width % heads:
        raise _invalid(file, f"{prefix}num_attention_heads", heads, f"does not divide hidden_size = {width}")
    if isinstance(heads, int) and isinstance(kv_heads, int) and heads % kv_heads:
        raise _invalid(
            file, f"{prefix}num_key_value_heads", kv_heads, f"does not divide num_attention_heads = {heads}"
        )


def _check_student(file: Path, config: Mapping[str, Any]) -> None:
    mixers, options = config.get("mixers"), config.get("mixer_options", {})
    if type(config.get("schema")) is not int:
        raise _invalid(file, "schema", config.get("schema"), "must be an integer")
    if not isinstance(config.get("teacher"), dict):
        raise _invalid(file, "teacher", config.get("teacher"), "must be the teacher's config")
    if not isinstance(mixers, list) or not all(isinstance(name, str) for name in mixers):
        raise _invalid(file, "mixers", mixers, "must list one mixer name per layer")
    if not isinstance(options, dict) or not all(isinstance(values, dict) for values in options.values()):
        raise _invalid(file, "mixer_options", options, "must map mixer names to options")


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < MAX_SIZE


def _is_fraction(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_dtype(value: str) -> bool:
    import torch

    return value == "auto" or isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)


def _invalid(file: Path, field: str, value: Any, problem: str) -> CheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return CheckpointError(f"{file}: '{field}' = {shown}: {problem}")

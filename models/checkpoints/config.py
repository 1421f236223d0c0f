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
    for name, value in config.items():
        if (value is not None or name in _SIZES) and (problem := _problem(name, value)):
            raise _invalid(file, prefix + name, value, problem)
    _check_heads(file, config, prefix)
    for group in _GROUPS:
        if isinstance(config.get(group), dict):
            _check_fields(file, config[group], f"{prefix}{group}.")


def _problem(name: str, value: Any) -> str:
    """What is wrong with a field; empty if nothing is, or if the field is not one that is checked."""
    # Torch and transformers take seconds to import, and readers of the other names here do without.
    import torch
    from transformers.activations import ACT2FN

    text = value if isinstance(value, str) else ""
    if name in _SIZES or name in _OTHER_SIZES:
        sizes = value if name in _OTHER_SIZES and isinstance(value, list) and value else [value]
        is_valid = all(type(each) is int and 0 < each < MAX_SIZE for each in sizes)
        return "" if is_valid else "must be a positive integer"
    if name in _FRACTIONS:
        is_valid = type(value) in (int, float) and math.isfinite(value) and value >= 0
        return "" if is_valid else "must be a number of at least 0"
    if name in _ACTIVATIONS and text not in ACT2FN:
        return f"unknown activation{nearest(text, ACT2FN)}"
    if name in ("dtype", "torch_dtype") and text != "auto":
        is_valid = isinstance(getattr(torch, text.removeprefix("torch."), None), torch.dtype)
        return "" if is_valid else "not a torch dtype, such as bfloat16"
    return ""


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
    heads = config.get("softmax_heads", {})
    if not isinstance(heads, dict) or not all(
        layer.isdecimal() and isinstance(own, list) and all(type(head) is int for head in own)
        for layer, own in heads.items()
    ):
        raise _invalid(file, "softmax_heads", heads, "must map layers to lists of heads")


def _invalid(file: Path, field: str, value: Any, problem: str) -> CheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return CheckpointError(f"{file}: '{field}' = {shown}: {problem}")

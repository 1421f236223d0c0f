"""Parameter counts and cache size of a model, from its config (no weights in memory)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from evalsuite.foundation import CheckpointError, printable
from evalsuite.models.checkpoints.load import CheckpointInfo, describe_checkpoint
from evalsuite.models.checkpoints.safetensors_index import stored_tensors
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.decoder.config import ARCHITECTURES
from evalsuite.models.mixers import AttentionSpan, CacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters; a tied head is counted once, under `embeddings`."""

    embeddings: int
    mixers: int
    """Parameters of `self_attn`, all layers."""
    rest: int
    """MLPs and norms."""

    @property
    def total(self) -> int:
        return self.embeddings + self.mixers + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Cache size of one sequence in bytes."""

    layers: tuple[CacheSpec, ...]
    dtype: torch.dtype
    """Dtype of everything but recurrent states, which are in float32."""

    @property
    def per_token(self) -> int:
        """Keys and values of full attention, per token."""
        full = [each for each in self.layers if each.span is not None and each.span.window is None]
        return sum(each.kv_width for each in full) * self.dtype.itemsize

    @property
    def fixed(self) -> int:
        """Recurrent and convolution states, independent of the length."""
        return sum(each.state_bytes(self.dtype) for each in self.layers)

    def at(self, tokens: int) -> int:
        """Cache size in bytes after `tokens` tokens."""
        return sum(each.bytes(tokens, self.dtype) for each in self.layers)


def build_on_meta(config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a config on the meta device."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def count_parameters(config: PreTrainedConfig) -> ParameterCounts:
    """Count the parameters of a model."""
    model = build_on_meta(config)
    tied = bool(config.tie_word_embeddings)
    counts = {"embeddings": 0, "mixers": 0, "rest": 0}
    for name, parameter in model.named_parameters():
        if name == "lm_head.weight" and tied:
            continue
        if "embed_tokens" in name or name.startswith("lm_head"):
            kind = "embeddings"
        else:
            kind = "mixers" if ".self_attn." in name else "rest"
        counts[kind] += parameter.numel()
    return ParameterCounts(**counts)


def as_student(config: PreTrainedConfig) -> PreTrainedConfig:
    """A teacher of a supported architecture as a student of softmax layers; other configs unchanged."""
    if isinstance(config, StudentConfig) or config.model_type not in ARCHITECTURES:
        return config
    return StudentConfig(config.to_dict(), ["softmax"] * config.num_hidden_layers)


def cache_size(config: PreTrainedConfig, dtype: torch.dtype = torch.bfloat16) -> CacheSize:
    """Cache size per sequence; recurrent states are in float32, everything else in `dtype`."""
    config = as_student(config)
    if isinstance(config, StudentConfig):
        student: Any = build_on_meta(config)
        return CacheSize(
            layers=tuple(layer.self_attn.cache_spec() for layer in student.model.layers), dtype=dtype
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layer = CacheSpec(kv_width=2 * kv_heads * head_dim, span=AttentionSpan())
    return CacheSize(layers=(layer,) * config.num_hidden_layers, dtype=dtype)


class FlopCounter:
    """FLOPs of a model's forward pass: matrix products only, two per multiply-add."""

    def __init__(self, config: PreTrainedConfig) -> None:
        config = as_student(config)
        self._student: Any = build_on_meta(config) if isinstance(config, StudentConfig) else None

    @cached_property
    def _others(self) -> int:
        """FLOPs per token outside mixers."""
        return sum(
            2 * module.weight.numel()
            for name, module in self._student.named_modules()
            if isinstance(module, nn.Linear) and ".self_attn." not in name
        )

    def per_token(self, length: int) -> float | None:
        """FLOPs of one token, averaged over a sequence of `length` tokens.

        None for architectures that students do not support.
        """
        if self._student is None:
            return None
        mixers: float = sum(layer.self_attn.flops(length) for layer in self._student.model.layers)
        return self._others + mixers


def flops_per_token(config: PreTrainedConfig, length: int) -> float | None:
    """FLOPs of one token's forward pass; see `FlopCounter.per_token`."""
    return FlopCounter(config).per_token(length)


def describe(path: str | Path) -> str:
    """Text description of a checkpoint: architecture, parameters, mixers per layer, cache, lineage.

    Raises:
        CheckpointError: as `load_checkpoint`; the weights are not read into memory.
    """
    info = describe_checkpoint(path)
    try:
        counts, cache = count_parameters(info.config), cache_size(info.config)
        expected = build_on_meta(info.config).state_dict() if isinstance(info.config, StudentConfig) else {}
    except Exception as error:
        # Architectures check few of their settings, and fail in any way.
        raise CheckpointError(
            f"{info.path}: no model can be built from config.json: {error or type(error).__name__}"
        ) from error
    _check_weights(info, expected)
    lines = [
        f"{info.label}",
        f"  path        {info.path}",
        f"  weights_id  {info.weights_id}",
        f"  model       {_architecture(info.config)}",
        f"  vocabulary  {info.config.vocab_size:,} embeddings, {len(info.tokenizer):,} tokens",
        f"  parameters  {counts.total:,} ({counts.embeddings:,} embeddings, {counts.mixers:,} mixers, "
        f"{counts.rest:,} MLPs and norms)",
        f"  layers      {_mixers_by_layer(info.config)}",
        f"  cache       {_format_bytes(cache.per_token)} per token, {_format_bytes(cache.fixed)} of states; "
        f"{_format_bytes(cache.at(2048))} at 2,048 tokens, "
        f"{_format_bytes(cache.at(32768))} at 32,768 (bfloat16)",
    ]
    flops = [flops_per_token(info.config, length) for length in (2048, 32768)]
    if flops[0] is not None and flops[1] is not None:
        short, long = (f"{count / 1e6:,.1f} MFLOP" for count in (flops[0], flops[1]))
        lines.append(f"  compute     {short} per token in 2,048 tokens, {long} in 32,768")
    return "\n".join(printable(line) for line in (*lines, *_lineage_lines(info)))


def _check_weights(info: CheckpointInfo, expected: Mapping[str, torch.Tensor]) -> None:
    """Refuse files that lack weights of a student, as `load_checkpoint` does."""
    if info.folder is None:
        return
    stored = {tensor.name: tensor.shape for tensor in stored_tensors(info.folder)}
    tied = {"lm_head.weight"} if info.config.tie_word_embeddings else set()
    missing = [
        name
        for name, weight in expected.items()
        if stored.get(name) != tuple(weight.shape) and not (name in tied and name not in stored)
    ]
    if missing:
        raise CheckpointError(
            f"{info.path}: {len(missing)} weights are missing or of another shape, first '{missing[0]}'; the "
            "files do not match the config"
        )


def _architecture(config: PreTrainedConfig) -> str:
    if isinstance(config, StudentConfig):
        return f"student of a {config.base.model_type} teacher, {config.num_hidden_layers} layers"
    return f"{config.model_type} teacher, {config.num_hidden_layers} layers"


def _mixers_by_layer(config: PreTrainedConfig) -> str:
    """Mixers with their layers: `gla 0-2, softmax 3`."""
    if not isinstance(config, StudentConfig):
        return f"softmax 0-{config.num_hidden_layers - 1}"
    runs: list[tuple[str, int, int]] = []
    for layer, name in enumerate(config.mixers):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], layer)
        else:
            runs.append((name, layer, layer))
    return ", ".join(f"{name} {first}" + (f"-{last}" if last > first else "") for name, first, last in runs)


def _format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _lineage_lines(info: CheckpointInfo) -> list[str]:
    if not info.lineage:
        return []
    return ["  lineage", *(f"    {name}: {_shorten(value)}" for name, value in info.lineage.items())]


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 90 else f"{text[:87]}…"

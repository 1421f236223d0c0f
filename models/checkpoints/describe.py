"""Text description of a checkpoint: architecture, parameters, mixers per layer, cache, FLOPs, lineage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evalsuite.foundation import CheckpointError, counted, printable
from evalsuite.models.checkpoints.config import STUDENT_TYPE
from evalsuite.models.checkpoints.load import CheckpointInfo, describe_checkpoint
from evalsuite.models.checkpoints.safetensors_index import stored_tensors
from evalsuite.models.decoder.cost import ModelCost


def describe(path: str | Path) -> str:
    """Text description of a checkpoint: architecture, parameters, mixers per layer, cache, lineage.

    Raises:
        CheckpointError: as `load_checkpoint`; the weights are not read into memory.
    """
    info = describe_checkpoint(path, with_tokenizer=False, variants=True)
    try:
        cost = ModelCost.of(info.config)
        texts = {
            "parameters": _parameters(cost),
            "layers": _mixers_by_layer(cost),
            "cache": _cache(cost),
            "compute": _compute(cost),
        }
    except Exception as error:
        # Architectures check few of their settings, and fail in any way.
        raise CheckpointError(
            f"{info.path}: no model can be built from config.json: {error or type(error).__name__}"
        ) from error
    is_student = info.config.model_type == STUDENT_TYPE
    if is_student:
        _check_weights(info, cost.model.state_dict())
    model = f"student of a {cost.config.base.model_type}" if is_student else info.config.model_type
    lines = [
        info.label,
        f"  path        {info.path}",
        f"  weights_id  {info.weights_id}",
        f"  model       {model} teacher, {counted(cost.config.num_hidden_layers, 'layer')}",
        f"  vocabulary  {cost.config.vocab_size:,} embeddings, {info.tokens:,} tokens",
        *(f"  {name:<12}{text}" for name, text in texts.items()),
    ]
    if info.lineage:
        lines += ["  lineage", *(f"    {name}: {_shorten(value)}" for name, value in info.lineage.items())]
    return "\n".join(map(printable, lines))


def _parameters(cost: ModelCost) -> str:
    if cost.is_foreign:
        return f"{cost.num_params:,} ({cost.embedding_params:,} embeddings)"
    rest = cost.num_params - cost.embedding_params - cost.mixer_params
    return (
        f"{cost.num_params:,} ({cost.embedding_params:,} embeddings, {cost.mixer_params:,} mixers, "
        f"{rest:,} MLPs and norms)"
    )


def _cache(cost: ModelCost) -> str:
    cache = cost.cache()
    if cache is None:
        return f"not measured: {cost.foreign}"
    return (
        f"{format_bytes(cache.per_token)} per token, {format_bytes(cache.fixed)} of states; "
        f"{format_bytes(cache.at(2048))} at 2,048 tokens, "
        f"{format_bytes(cache.at(32768))} at 32,768 (bfloat16)"
    )


def _compute(cost: ModelCost) -> str:
    if cost.cache() is None:
        return "not counted, as the cache is not measured"
    short, long = (f"{cost.forward_flops(length) / 1e6:,.1f} MFLOP" for length in (2048, 32768))
    least = "at least " if cost.is_foreign else ""
    return f"{least}{short} per token in 2,048 tokens, {long} in 32,768"


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


def _mixers_by_layer(cost: ModelCost) -> str:
    """Mixers with their layers: `gla 0-2, gla (softmax heads 1, 5) 3, softmax 4`."""
    names = _foreign_mixers(cost) if cost.is_foreign else list(cost.config.mixers)
    if len(names) != cost.config.num_hidden_layers:
        return f"{cost.config.num_hidden_layers}, whose mixers are not told apart"
    for layer, heads in getattr(cost.config, "softmax_heads", {}).items():
        names[layer] += f" (softmax heads {', '.join(map(str, heads))})"
    runs: list[tuple[str, int, int]] = []
    for layer, name in enumerate(names):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1], layer)
        else:
            runs.append((name, layer, layer))
    return ", ".join(f"{name} {first}" + (f"-{last}" if last > first else "") for name, first, last in runs)


def _foreign_mixers(cost: ModelCost) -> list[str]:
    """Class of the mixer of each layer, and what it keeps."""
    if isinstance(cost.foreign, str):
        return []
    names = []
    for layer in cost.foreign:
        span, states = layer.cache.span, layer.cache.states
        kept = "a state" if states else "no cache"
        if span is not None:
            keys = "all tokens" if span.window is None else f"window of {span.window}"
            kept = f"{keys}, and a state" if states else keys
        names.append(f"{layer.mixer or 'layer'} ({kept})")
    return names


def format_bytes(count: float) -> str:
    """`1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 90 else f"{text[:87]}…"

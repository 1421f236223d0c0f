"""Recipe keys of earlier versions, which are refused with the name of the current key."""

from collections.abc import Iterator
from typing import Any

from evalsuite.foundation import ConfigError

RECIPE = {"saving": "checkpoint", "tensorboard": "track"}
STUDENT = {"checkpoints": "initial_checkpoints", "sizes_of": "shape_from"}
ARCHITECTURE = {
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "max_length": "max_position_embeddings",
    "tie_embeddings": "tie_word_embeddings",
    "initial_std": "initializer_range",
}
CHECKPOINT = {
    "state_seconds": "state_interval_seconds",
    "checkpoint_tokens": "save_tokens",
    "stage_checkpoints": "save_each_stage",
}
DATA_SOURCE = {
    "kinds": "mixture",
    "longest": "max_haystack_tokens",
    "shuffle": "shuffle_buffer_size",
    "prompts": "prompt_source",
    "count": "num_prompts",
    "echo": "repeat_chunk_tokens",
    "echo_spans": "repeat_span_tokens",
    "repeat": "infinite",
    "part": "subset",
    "share": "sample_fraction",
}
DATA_SOURCE_TO_RECIPE = {"workers": "num_workers", "num_workers": "num_workers"}
"""Keys that data sources had → the recipe's own key."""
STAGE = {
    "train": "trainable",
    "length": "seq_len",
    "batch": "batch_size",
    "micro_batch": "micro_batch_size",
    "lr_rest": "backbone_lr",
    "clip": "max_grad_norm",
    "mask": "loss_mask",
    "distance": "alignment_loss",
}
STAGE_GROUPS = {
    "schedule": {"warmup": "warmup_ratio", "decay": "decay_ratio", "min_ratio": "min_lr_ratio"},
    "optimizer": {"epsilon": "eps"},
    "loss": {"rest": "tail", "scale": "kl_reduction"},
    "alignment_loss": {"relative": "normalize_by_teacher"},
}


def refuse_retired_keys(tree: dict[str, Any], source: str) -> None:
    """Raise ConfigError if the unvalidated recipe `tree` uses a key of an earlier version."""
    lines = [
        f"{source}: '{place}{key}' has been renamed to '{retired[key]}'"
        for place, group, retired in _groups(tree)
        if isinstance(group, dict)
        for key in group
        if key in retired
    ]
    lines += [
        f"{source}: 'data.{name}.{key}' is now the recipe's own '{DATA_SOURCE_TO_RECIPE[key]}'"
        for name, data_source in _mapping(tree.get("data")).items()
        for key in _mapping(data_source)
        if key in DATA_SOURCE_TO_RECIPE
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def _groups(tree: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Place, contents and retired keys of every group of settings."""
    yield "", tree, RECIPE
    yield "student.", tree.get("student"), STUDENT
    yield "architecture.", tree.get("architecture"), ARCHITECTURE
    yield "checkpoint.", tree.get("checkpoint"), CHECKPOINT
    for name, data_source in _mapping(tree.get("data")).items():
        yield f"data.{name}.", data_source, DATA_SOURCE
    stages = tree.get("stages")
    for number, stage in enumerate(stages if isinstance(stages, list) else []):
        yield f"stages.{number}.", stage, STAGE
        for name, retired in STAGE_GROUPS.items():
            yield f"stages.{number}.{name}.", stage.get(name) if isinstance(stage, dict) else None, retired


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Whom to ask: labels, roles and tokenizers of the checkpoints of a run, without their weights."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, content_hash


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One checkpoint as the evaluator knows it before it is loaded."""

    label: str
    path: str
    role: str
    weights_id: str
    tokenizer_id: str
    tokenizer: Any
    max_length: int
    """Positions that its config states."""
    parameters: int | None
    lineage: dict[str, Any]
    config: Any = None
    """As transformers reads it; None where there is no model behind."""
    training: Path | None = None
    """The loss curve in its folder, where it has one."""


def describe(
    checkpoints: Sequence[str], teacher: str | None, *, trust_remote_code: bool = False
) -> list[Subject]:
    """Read what the checkpoints are; the teacher comes first.

    A checkpoint that is also the teacher is asked once.

    Raises:
        ConfigError: no checkpoint, or two that hold the same weights.
        CheckpointError: one that cannot be read.
    """
    from evalsuite.models.checkpoints import describe_checkpoint

    paths = [teacher, *(path for path in checkpoints if path != teacher)] if teacher else list(checkpoints)
    if not paths:
        raise ConfigError("there is nobody to ask: name a checkpoint or a teacher")
    known = [describe_checkpoint(path, trust_remote_code=trust_remote_code) for path in paths]
    labels = [info.label for info in known]
    if len(set(labels)) < len(labels):
        labels = unique_labels([str(path) for path in paths])
    found: list[Subject] = []
    for path, label, info in zip(paths, labels, known, strict=True):
        subject = Subject(
            label=label,
            path=str(path),
            role="teacher" if path == teacher else "student",
            weights_id=info.weights_id,
            tokenizer_id=tokenizer_id(info.tokenizer),
            tokenizer=info.tokenizer,
            max_length=positions(info.config),
            parameters=info.parameters,
            lineage=dict(info.lineage),
            config=info.config,
            training=info.training,
        )
        for other in found:
            if other.weights_id == subject.weights_id:
                raise ConfigError(f"{subject.path} holds the very weights of {other.path}; name it once")
        found.append(subject)
    return found


def each_checkpoint(paths: Sequence[str]) -> list[str]:
    """The paths, with a folder that is no checkpoint and holds some (as `distill --out` makes) as those.

    What holds none stays as it is: loading it says what is wrong with it.
    """
    found: list[str] = []
    for path in paths:
        folder = Path(path).expanduser()
        below: list[Path] = []
        if path != "pocket" and folder.is_dir() and not (folder / "config.json").is_file():
            below = [config.parent for config in folder.rglob("config.json")]
        found += sorted(str(each) for each in below if any(each.glob("*.safetensors"))) or [path]
    return list(dict.fromkeys(found))


def unique_labels(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that tell them apart: ``gla``, or ``a/final`` and ``b/final``."""
    parts = [Path(path).parts for path in paths]
    labels = []
    for number, mine in enumerate(parts):
        for depth in range(1, len(mine) + 1):
            others = (each[-depth:] for at, each in enumerate(parts) if at != number)
            if depth == len(mine) or mine[-depth:] not in others:
                labels.append("/".join(mine[-depth:]))
                break
    return [label.removesuffix(".gguf") for label in labels]


def tokenizer_id(tokenizer: Any) -> str:
    """16 hex digits over everything that decides which tokens a text becomes."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary: Any = sorted(tokenizer.get_vocab().items())
    if fast is not None:
        # How it was last asked to pad and cut is a state, not a property.
        vocabulary = json.loads(fast.to_str()) | {"padding": None, "truncation": None}
    return content_hash(
        [
            type(tokenizer).__name__,
            vocabulary,
            tokenizer.chat_template,
            [tokenizer.bos_token_id, tokenizer.eos_token_id],
            [getattr(tokenizer, "add_bos_token", None), getattr(tokenizer, "add_eos_token", None)],
        ]
    )


def positions(config: Any) -> int:
    """Positions that a model reads, as its config states them.

    Raises:
        ConfigError: the config does not say.
    """
    stated = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not stated:
        raise ConfigError(f"{type(config).__name__} does not state max_position_embeddings")
    return int(stated)

"""Checkpoints of a run: labels, roles, tokenizers and lengths, read without their weights."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from evalsuite.foundation import CheckpointError, ConfigError, DataError, content_hash, read_json
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.foundation.typed import from_json
from evalsuite.models.checkpoints.config import STUDENT_TYPE
from evalsuite.models.checkpoints.location import FAILED
from evalsuite.models.checkpoints.precision import split_precision
from evalsuite.models.checkpoints.tokenizers import tokenizer_parts
from evalsuite.reports.run import Checkpoint, DivergedStudent


@dataclass(frozen=True, kw_only=True)
class LocalCheckpoint(Checkpoint):
    """A checkpoint that lies here, as known before its weights are loaded, with what builds its requests."""

    positions: int
    text_tokenizer: Any
    """As transformers loads it; `tokenizer` identifies it."""
    config: Any = None
    """Config as transformers reads it; None for a checkpoint without a model."""
    training: Path | None = None
    """File of its loss curve, if it has one."""

    def limit(self, max_length: int | None) -> ContextLimit:
        """Return which contexts it reads in a run with this `max_length`."""
        return ContextLimit(self.positions, max_length)


class CheckpointRegistry:
    """Labels of the checkpoints of one run: one per weights_id, and none twice.

    Build, registration of late checkpoints and merging of shards all take their labels from here.

    Args:
        known: checkpoints that have their labels already; of several entries with the same weights the first
            counts.
    """

    def __init__(self, known: Iterable[Checkpoint] = ()) -> None:
        self._known: dict[str, Checkpoint] = {}
        self.labels: dict[str, str] = {}
        """weights_id → label."""
        for each in known:
            self._known.setdefault(each.weights_id, each)
            self.labels.setdefault(each.weights_id, each.label)

    def add(self, checkpoint: Checkpoint) -> str:
        """Register a checkpoint and return its label.

        Known weights keep their label. New ones get the preferred label if it is free, else the shortest free
        suffix of the path (``b/kda``). Where the path is that of the other checkpoint, which was then
        retrained in place, the label is followed by the weights: ``kda (3f9a1c)``.
        """
        if checkpoint.weights_id not in self.labels:
            self._known[checkpoint.weights_id] = checkpoint
            self.labels[checkpoint.weights_id] = self._free_label(checkpoint)
        return self.labels[checkpoint.weights_id]

    def _free_label(self, checkpoint: Checkpoint) -> str:
        taken = set(self.labels.values())
        others = {each.path for each in self._known.values() if each is not checkpoint}
        candidates = [checkpoint.label]
        if checkpoint.path not in others:
            candidates += path_suffixes(checkpoint.path)
        digits = (checkpoint.weights_id[:length] for length in range(6, len(checkpoint.weights_id) + 1))
        candidates += [f"{checkpoint.label} ({short})" for short in digits]
        return next(label for label in candidates if label not in taken)


def path_suffixes(path: str) -> list[str]:
    """Return the suffixes of a path in whole parts, the shortest first: ``kda``, ``b/kda``."""
    name, precision = split_precision(path)
    parts = Path(name).parts
    suffixes = ("/".join(parts[-depth:]).removesuffix(".gguf") for depth in range(1, len(parts) + 1))
    return [precision.label(suffix) for suffix in suffixes]


def describe_checkpoints(
    checkpoints: Sequence[str], teacher: str | None, *, trust_remote_code: bool = False
) -> list[LocalCheckpoint]:
    """Read the metadata of checkpoints, the teacher first.

    A checkpoint that is also the teacher is listed once.

    Raises:
        ConfigError: no checkpoint, or two with the same weights.
        CheckpointError: a checkpoint that cannot be read.
    """
    from evalsuite.models.checkpoints.load import describe_checkpoint
    from evalsuite.models.checkpoints.positions import max_positions

    paths = [teacher, *(path for path in checkpoints if path != teacher)] if teacher else list(checkpoints)
    if not paths:
        raise ConfigError("no checkpoints given: pass --checkpoint and/or --teacher")
    known = [
        describe_checkpoint(path, trust_remote_code=trust_remote_code, variants=True, shares_tokenizer=True)
        for path in paths
    ]
    labels = [info.label for info in known]
    if len(set(labels)) < len(labels):
        labels = unique_labels([str(path) for path in paths])
    found: list[LocalCheckpoint] = []
    for path, label, info in zip(paths, labels, known, strict=True):
        checkpoint = LocalCheckpoint(
            label=label,
            path=str(path),
            role="teacher" if path == teacher else "student",
            weights_id=info.weights_id,
            tokenizer=_id_of_shared(info.tokenizer),
            text_tokenizer=info.tokenizer,
            positions=max_positions(info.config),
            parameters=info.parameters,
            lineage={**info.lineage, **_layers(info.config)},
            config=info.config,
            training=info.training,
        )
        for other in found:
            if other.weights_id == checkpoint.weights_id:
                raise ConfigError(f"{checkpoint.path} has the same weights as {other.path}; pass only one")
        found.append(checkpoint)
    return found


def diverged_students(paths: Sequence[str]) -> list[DivergedStudent]:
    """Return the students below `paths` that diverged in training, as `distill` has noted them.

    Args:
        paths: output folders of `distill`, or folders of their students.

    Raises:
        CheckpointError: a note cannot be read.
    """
    notes = {note: None for path in paths for note in _notes_of_divergence(path)}
    if not notes:
        return []
    try:
        found = {note: from_json(read_json(note), DivergedStudent, str(note)) for note in notes}
    except DataError as error:
        raise CheckpointError(f"a student's note of divergence cannot be read: {error}") from error
    return [replace(student, path=str(note.parent.parent / student.label)) for note, student in found.items()]


def _notes_of_divergence(path: str) -> list[Path]:
    """Notes on the students of the run folder `path` and its variants, or on the student it would be."""
    folder = Path(split_precision(path)[0]).expanduser()
    if not folder.exists():
        note = folder.parent / FAILED / f"{folder.name}.json"
        return [note] if note.is_file() else []
    return [] if (folder / "config.json").is_file() else sorted(folder.rglob(f"{FAILED}/*.json"))


def expand_folders(paths: Sequence[str]) -> list[str]:
    """Replace folders of checkpoints, as `distill --out` writes them, by the checkpoints inside.

    Settings of a folder are those of each checkpoint.
    A folder that contains no checkpoint is returned as it is; loading it then raises a specific error.
    Students that diverged are left out (see `diverged_students`).

    Raises:
        CheckpointError: all of them have diverged.
    """
    found: list[str] = []
    named = {path: split_precision(path) for path in paths}
    trained = [
        path
        for path, (name, _) in named.items()
        if Path(name).expanduser().exists() or not _notes_of_divergence(path)
    ]
    if paths and not trained:
        sentences = "; ".join(f"{each.label} {each.why}" for each in diverged_students(paths))
        raise CheckpointError(f"{sentences}: there is no checkpoint to evaluate")
    for path in trained:
        name, precision = named[path]
        folder = Path(name).expanduser()
        below: list[Path] = []
        if name != "pocket" and folder.is_dir() and not (folder / "config.json").is_file():
            below = [config.parent for config in folder.rglob("config.json")]
        settings = f":{precision}" if precision else ""
        found += sorted(f"{each}{settings}" for each in below if any(each.glob("*.safetensors"))) or [path]
    return list(dict.fromkeys(found))


def unique_labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest distinct path suffixes: ``gla``, or ``a/final`` and ``b/final``."""
    named = [split_precision(path) for path in paths]
    parts = [(Path(name).parts, precision) for name, precision in named]
    labels = []
    for number, (mine, precision) in enumerate(parts):
        for depth in range(1, len(mine) + 1):
            others = [(each[-depth:], its) for at, (each, its) in enumerate(parts) if at != number]
            if depth == len(mine) or (mine[-depth:], precision) not in others:
                labels.append(precision.label("/".join(mine[-depth:]).removesuffix(".gguf")))
                break
    return labels


def _layers(config: Any) -> dict[str, Any]:
    """What reports cannot read from a student's layers: the place of its mixers in the taxonomy, and bytes of
    its states. Empty for other models."""
    if config.model_type != STUDENT_TYPE:
        return {}
    from evalsuite.models.decoder.taxonomy import state_bytes, taxonomies

    places = {name: asdict(place) for name, place in taxonomies(config).items()}
    return {"taxonomy": places, "state_bytes": state_bytes(config)}


_IDS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _id_of_shared(tokenizer: Any) -> str:
    """`tokenizer_id` of a tokenizer that nobody changes, which takes seconds for a large vocabulary, once."""
    if tokenizer not in _IDS:
        _IDS[tokenizer] = tokenizer_id(tokenizer)
    return _IDS[tokenizer]


def tokenizer_id(tokenizer: Any) -> str:
    """Return 16 hex digits over everything that determines the tokens of a text."""
    parts = tokenizer_parts(tokenizer)
    vocabulary: Any = sorted(tokenizer.get_vocab().items()) if parts is None else parts
    return content_hash(
        [
            type(tokenizer).__name__,
            vocabulary,
            tokenizer.chat_template,
            [tokenizer.bos_token_id, tokenizer.eos_token_id],
            [getattr(tokenizer, "add_bos_token", None), getattr(tokenizer, "add_eos_token", None)],
            # Only where set, so that the ids of all others stay as they were.
            *(["split_special_tokens"] if getattr(tokenizer, "split_special_tokens", False) else []),
        ]
    )


def check_max_length(checkpoints: Sequence[LocalCheckpoint], max_length: int) -> None:
    """Refuse a `max_length` that a checkpoint's positions cannot reach.

    Raises:
        ConfigError: naming the checkpoint, and why.
    """
    from evalsuite.models.checkpoints.positions import check_max_length as check

    for each in checkpoints:
        if each.limit(max_length).extension is not None:
            try:
                check(each.config, max_length)
            except ConfigError as error:
                raise ConfigError(
                    f"'max_length' (--max-length) = {max_length}: {each.label} cannot read that far: "
                    f"{error}; evaluate it in a run of its own, without --max-length"
                ) from error

"""Measure distances and write them to a run folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evalsuite.evaluation.distances.passages import Part, answer_parts, parse_texts, text_parts
from evalsuite.evaluation.inference.engines import resolve_device
from evalsuite.foundation import ConfigError, progress
from evalsuite.models.checkpoints.load import Checkpoint, load_checkpoint
from evalsuite.models.checkpoints.positions import max_positions
from evalsuite.models.checkpoints.tokenizers import tokenizer_parts
from evalsuite.models.diagnostics.distance import compare_models
from evalsuite.models.diagnostics.quantization import BITS, quantized
from evalsuite.reports.records.distances import COLUMNS, DISTANCE_FILE


def measure_distances(
    run: Path,
    checkpoints: Sequence[str],
    teacher: str,
    *,
    texts: Sequence[str] = (),
    yardstick: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    quiet: bool = False,
) -> pd.DataFrame:
    """Compare models with their teacher at the right answers of a run and on texts, one model at a time.

    The teacher and its roundings are read in float32, students in `dtype`. Every model that is finished is
    written, so that an interrupted call loses one.

    Args:
        run: an evaluated run folder; `distances.parquet` is written there.
        checkpoints: students; may be empty with `yardstick`.
        teacher: hub id, folder, GGUF file or `pocket`.
        texts: `NAME=FILE`, see `text_parts`.
        yardstick: also measure the teacher rounded to 8, 6, 5, 4, 3 and 2 bits.
        device, dtype: as for `evalsuite run`.
        trust_remote_code: allow code of the checkpoints.
        quiet: no progress bar.

    Returns:
        The rows that were measured, with the columns of `evalsuite.reports.records.distances`.

    Raises:
        ConfigError: nothing to measure, or a student with another tokenizer or vocabulary.
        RunFolderError, DataError: as `answer_parts` and `text_parts`.
    """
    if not checkpoints and not yardstick:
        raise ConfigError("nothing to measure: name students, or pass --yardstick")
    named = parse_texts(texts)
    device, dtype = resolve_device(device, dtype)

    def load(path: str, kind: str) -> Checkpoint:
        return load_checkpoint(
            path, dtype=kind, device=device, trust_remote_code=trust_remote_code, shares_tokenizer=True
        )

    reference = load(teacher, "float32")
    config = reference.model.config
    parts = answer_parts(run, reference.tokenizer, reference.weights_id)
    embedding: Any = reference.model.get_input_embeddings()
    parts += text_parts(named, reference.tokenizer, embedding.weight.shape[0], max_positions(config))
    frames = []
    marks = BITS if yardstick else ()
    with progress(total=len(checkpoints) + len(marks), what="distance", unit="model", quiet=quiet) as bar:
        for path in checkpoints:
            student = load(path, dtype)
            if not same_tokens(student.tokenizer, reference.tokenizer):
                raise ConfigError(
                    f"{path}: its tokenizer splits texts otherwise than that of the teacher {teacher}, and "
                    "distances compare probabilities of tokens; scores and choices can be compared"
                )
            frames.append(_compare(reference, student.model, parts, student.weights_id, None))
            DISTANCE_FILE.add(run, frames[-1])
            bar.update(1)
        for bits in marks:
            rounded = quantized(reference.model, bits)
            frames.append(_compare(reference, rounded, parts, reference.weights_id, bits))
            DISTANCE_FILE.add(run, frames[-1])
            bar.update(1)
    return pd.concat(frames, ignore_index=True)


def same_tokens(first: Any, second: Any) -> bool:
    """Whether two tokenizers split every text into the same ids.

    Families have classes, chat templates and ends of their own, which the texts that are compared do not use.
    """
    models = []
    for tokenizer in (first, second):
        parts = tokenizer_parts(tokenizer) or {}
        names = ("normalizer", "pre_tokenizer", "model")
        models.append((tokenizer.get_vocab(), [parts.get(name) for name in names]))
    return models[0] == models[1]


def _compare(
    teacher: Checkpoint, model: Any, parts: Sequence[Part], weights_id: str, bits: int | None
) -> pd.DataFrame:
    rows = [row for part in parts for row in _rows(teacher, model, part)]
    ids = {"weights_id": weights_id, "teacher": teacher.weights_id, "same_recipe_as": None}
    frame = pd.DataFrame(rows).assign(**ids)
    return frame.assign(bits=pd.array([bits] * len(frame), dtype="Int64"))[list(COLUMNS)]


def _rows(teacher: Checkpoint, model: Any, part: Part) -> Iterator[dict[str, Any]]:
    for found in compare_models(teacher.model, {"": model}, part.passages, groups=len(part.groups)):
        token_class, positions = part.groups[found.group]
        yield {
            "text": part.text,
            "source": part.source,
            "doc_id": found.doc_id,
            "token_class": token_class,
            "positions": positions,
            "tokens": found.tokens,
            "kl": found.kl,
            "agreement": found.agreement,
            "teacher_nll": found.teacher_nll,
            "student_nll": found.student_nll,
        }

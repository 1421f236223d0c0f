"""What distances are measured on: the right answers of a run's documents, and held-out texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.evaluation.checkpoints import tokenizer_id
from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests
from evalsuite.foundation import ConfigError, DataError, RunFolderError, content_hash, read_jsonl
from evalsuite.models.diagnostics.distance import Passage
from evalsuite.models.diagnostics.token_classes import (
    CLASSES,
    classify,
    frequent_tokens,
    position_buckets,
)
from evalsuite.protocols.tokenization import Encoder
from evalsuite.reports.records.distances import ANSWERS
from evalsuite.reports.records.score_files import read_rows, score_path

EDGES = (512, 1024, 2048)
"""Exclusive upper ends of the position buckets of a text; its documents are cut to the last."""


@dataclass(frozen=True, slots=True)
class Part:
    """Passages of one text and source, and what their groups mean."""

    text: str
    source: str
    passages: tuple[Passage, ...]
    groups: tuple[tuple[str | None, str | None], ...]
    """Of each group its token class and its positions; None where they are not told apart."""


def answer_parts(run: Path, tokenizer: Any, weights_id: str) -> list[Part]:
    """The right choices after their contexts, one part per log-likelihood benchmark.

    Args:
        run: an evaluated run folder.
        tokenizer: of the teacher.
        weights_id: of the teacher, whose score rows state which choice is right.

    Raises:
        RunFolderError: the run has no requests for this tokenizer, or no scores of the teacher.
        DataError: the run has no right answer to compare at.
    """
    manifest, name = read_built(run), tokenizer_id(tokenizer)
    if name not in {each.tokenizer for each in manifest.checkpoints}:
        raise RunFolderError(f"{run}: no requests for this teacher's tokenizer; run it there first")
    fingerprint = manifest.fingerprints.get(weights_id)
    found = []
    for cell in cells_of(manifest):
        if cell.protocol != "loglikelihood":
            continue
        path = None if fingerprint is None else score_path(run, cell.benchmark, cell.protocol, fingerprint)
        if path is None or not path.is_file():
            raise RunFolderError(
                f"{run}: no {cell.protocol} scores of the teacher on {cell.benchmark}; they state which "
                "choice is right: run the teacher there first"
            )
        right = {row["doc_id"]: row["detail"].get("gold", 0) for row in read_rows(path).values()}
        passages = []
        for request_set in read_requests(run, name, cell):
            number = right.get(request_set.doc_id, 0)
            number = number[0] if isinstance(number, list) else number
            if not isinstance(number, int) or not 0 <= number < len(request_set.choices):
                continue
            request, continuation = request_set.choices[number]
            context = request_set.score_requests[request].context
            answer = request_set.score_requests[request].continuations[continuation]
            tokens = np.array([*context, *answer], dtype=np.int64)
            passages.append(
                Passage(request_set.doc_id, tokens, len(context), np.zeros(len(answer), dtype=np.int64))
            )
        if passages:
            found.append(Part(ANSWERS, cell.benchmark, tuple(passages), ((None, None),)))
    if not found:
        raise DataError(f"{run}: no benchmark with right answers under log-likelihood")
    return found


def text_parts(texts: Mapping[str, Path], tokenizer: Any, vocabulary: int, max_length: int) -> list[Part]:
    """Held-out texts by token class and position, one part per text.

    The frequent tokens are those that make up most of the text itself.

    Args:
        texts: name → a `.jsonl` file with one document (`text`) a line, or a file that is one document.
        tokenizer: of the teacher.
        vocabulary: number of rows of its embedding.
        max_length: positions of the models; longer documents are cut.

    Raises:
        ConfigError: a text is named `answers`.
        DataError: a file is missing, or has no document of two tokens.
    """
    found = []
    edges = tuple(edge for edge in EDGES if edge < max_length)
    edges = (*edges, min(max_length, EDGES[-1])) if len(edges) < len(EDGES) else edges
    starts = (0, *edges[:-1])
    positions = tuple(f"{start}-{end - 1}" for start, end in zip(starts, edges, strict=True))
    groups = tuple((name, place) for name in CLASSES for place in positions)
    encoder = Encoder(tokenizer)
    for name, path in texts.items():
        if name == ANSWERS:
            raise ConfigError(f"{path}: a text cannot be named '{ANSWERS}', which are the benchmarks'")
        documents = list(_documents(path))
        tokens_of = encoder.encode(documents)
        rows = [list(tokens_of[text][: edges[-1]]) for text in documents]
        rows = [row for row in rows if len(row) > 1]
        if not rows:
            raise DataError(f"{path}: no document of two tokens or more")
        counts = np.bincount(np.concatenate([np.array(row) for row in rows]), minlength=vocabulary)
        frequent = frequent_tokens(counts)
        passages = []
        for row in rows:
            tokens = np.array(row, dtype=np.int64)
            classes = classify(tokens, frequent).astype(np.int64)
            buckets = position_buckets(len(tokens), edges).astype(np.int64)
            cells = (classes * len(edges) + buckets)[1:]
            passages.append(Passage(content_hash(row), tokens, 1, cells))
        unique = {passage.doc_id: passage for passage in passages}
        found.append(Part(name, name, tuple(unique.values()), groups))
    return found


def _documents(path: Path) -> Iterator[str]:
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file")
    if Path(path).suffix != ".jsonl":
        yield Path(path).read_text(encoding="utf-8")
        return
    for number, row in enumerate(read_jsonl(path), 1):
        if not isinstance(row.get("text"), str):
            raise DataError(f"{path}, line {number}: 'text' = {row.get('text')!r}; expected a string")
        yield row["text"]


def parse_texts(values: Sequence[str]) -> dict[str, Path]:
    """Read `NAME=FILE` options; a file without a name is named by its stem.

    Raises:
        ConfigError: two texts of one name.
    """
    found: dict[str, Path] = {}
    for value in values:
        name, separator, file = value.partition("=")
        path = Path(file if separator else value)
        name = name if separator else path.stem
        if name in found:
            raise ConfigError(f"--text {value}: two texts are named '{name}'; write NAME=FILE")
        found[name] = path
    return found

"""Answers on disk: appended and flushed as they come, never computed twice, never shared across engines.

The folder holds one journal per fingerprint and verb, `<fingerprint>.<verb>.jsonl`; each line is
`{"key": [request hash, sampling, seed], "answer": {…}}`. A journal only grows, under a lock, so several
processes may work on one folder; of two lines with one key the later holds.
"""

import gc
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from evalsuite.foundation import DataError, append_jsonl, progress, read_jsonl
from evalsuite.models.engine.base import Engine, score_rest
from evalsuite.models.engine.requests import (
    REFUSED,
    Answer,
    GenerateAnswer,
    GenerateRequest,
    Request,
    ScoreAnswer,
    ScoreRequest,
)

FLUSH_SECONDS = 1.0
FLUSH_ANSWERS = 256

Key = tuple[str, str, str, int]
AnyRequest = TypeVar("AnyRequest", ScoreRequest, GenerateRequest)


class AnswerStore:
    """The answers in one folder.

    Raises:
        DataError: a journal holds a line that is not an answer (not the last, torn one: that is dropped).
        RunFolderError: the folder cannot be written, or the disk is full; what was there stays whole.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._known: dict[tuple[str, str], dict[tuple[str, str, int], Answer]] = {}

    def get(self, fingerprint: str, request: Request) -> Answer | None:
        """Return the stored answer of this engine to this request, or None."""
        return self.find(fingerprint, request.key())

    def find(self, fingerprint: str, key: Key) -> Answer | None:
        """Return the stored answer of this engine to the request with this key, or None."""
        verb, *rest = key
        return self._answers(fingerprint, verb).get(cast(Any, tuple(rest)))

    def add(self, fingerprint: str, answers: Sequence[tuple[Key, Answer]]) -> None:
        """Append answers and flush them to disk before returning."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for (verb, *rest), answer in answers:
            rows.setdefault(verb, []).append({"key": rest, "answer": answer.row()})
        for verb, lines in rows.items():
            append_jsonl(self._path(fingerprint, verb), lines)
        for (verb, hashed, sampling, seed), answer in answers:
            self._answers(fingerprint, verb)[hashed, sampling, seed] = answer

    def _path(self, fingerprint: str, verb: str) -> Path:
        return self.folder / f"{fingerprint}.{verb}.jsonl"

    def _answers(self, fingerprint: str, verb: str) -> dict[tuple[str, str, int], Answer]:
        known = self._known.get((fingerprint, verb))
        if known is None:
            with without_collection():
                known = dict(_read(self._path(fingerprint, verb), verb))
            self._known[fingerprint, verb] = known
        return known


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the collector from going through hundreds of thousands of new objects, again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read(path: Path, verb: str) -> Iterator[tuple[tuple[str, str, int], Answer]]:
    kind = ScoreAnswer if verb == "score" else GenerateAnswer
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            hashed, sampling, seed = row["key"]
            yield (hashed, sampling, seed), kind.from_row(row["answer"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}, line {number}: not an answer ({error!r})") from error


def answer_all(
    engine: Engine, store: AnswerStore, requests: Sequence[Request], *, quiet: bool = False
) -> list[Answer]:
    """Return the answers in request order; only what the store lacks is computed, equal requests once.

    Whatever the engine yields is on disk within about a second, and before this function returns or
    raises. A stored answer that this engine would not have given, because its `max_length` now lets a
    refused or cut request run further, is asked again.

    Raises:
        RunFolderError: the store cannot be written.
    """
    keys = [request.key() for request in requests]
    asked = dict(zip(keys, requests, strict=True))
    known: dict[Key, Answer] = {}
    for key, request in asked.items():
        stored = store.find(engine.fingerprint, key)
        if stored is not None and _holds(request, stored, engine.max_length):
            known[key] = stored
    missing = len(asked) - len(known)
    with progress(total=missing, what=f"answer ({engine.name})", unit="req", quiet=quiet) as bar:
        for key, answer in _computed(engine, store, asked, frozenset(known)):
            known[key] = answer
            bar.update(1)
    return [known[key] for key in keys]


def _holds(request: Request, answer: Answer, max_length: int) -> bool:
    if answer.error and answer.error.startswith(REFUSED):
        return answer.error == request.refusal(max_length)
    if isinstance(request, GenerateRequest) and isinstance(answer, GenerateAnswer):
        return answer.finish != "length" or len(answer.tokens) == request.limit(max_length)
    return True


def _computed(
    engine: Engine, store: AnswerStore, asked: dict[Key, Request], known: Collection[Key]
) -> Iterator[tuple[Key, Answer]]:
    scores = {key: request for key, request in asked.items() if isinstance(request, ScoreRequest)}
    prompts = {
        key: request
        for key, request in asked.items()
        if key not in known and isinstance(request, GenerateRequest)
    }
    done = frozenset(number for number, key in enumerate(scores) if key in known)
    if len(done) < len(scores):
        answers = score_rest(engine, list(scores.values()), done)
        yield from _recorded(engine, store, list(scores), answers)
    if prompts:
        yield from _recorded(engine, store, list(prompts), engine.generate(list(prompts.values())))


def _recorded(
    engine: Engine, store: AnswerStore, keys: list[Key], answers: Iterator[tuple[int, Any]]
) -> Iterator[tuple[Key, Answer]]:
    """Pass answers on, writing them down in batches; also when the engine is interrupted."""
    pending: list[tuple[Key, Answer]] = []
    flushed = time.monotonic()
    try:
        for index, answer in answers:
            pending.append((keys[index], answer))
            if len(pending) >= FLUSH_ANSWERS or time.monotonic() - flushed > FLUSH_SECONDS:
                batch, pending = pending, []
                store.add(engine.fingerprint, batch)
                flushed = time.monotonic()
                yield from batch
    finally:
        store.add(engine.fingerprint, pending)
    yield from pending

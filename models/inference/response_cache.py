"""Responses on disk: appended as they arrive, never computed twice, never shared across fingerprints.

The folder holds one response log per fingerprint and verb, `<fingerprint>.<verb>.jsonl`; each line is
`{"key": [request hash, sampling, seed], "response": {…}}`. Logs are append-only and locked, so several
processes may share a folder; of two lines with the same key, `settle` tells which one counts.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, append_jsonl, progress, read_jsonl
from evalsuite.foundation.garbage_collection import collection_paused
from evalsuite.models.inference.base import Engine, RemoteEngine, score_remaining
from evalsuite.models.inference.requests import (
    INVALID_PREFIX,
    GenerateRequest,
    GenerateResponse,
    Request,
    Response,
    ScoreRequest,
    ScoreResponse,
)
from evalsuite.models.inference.settling import HALF_TOLERANCE, settle

FLUSH_SECONDS = 1.0
FLUSH_RESPONSES = 256

Key = tuple[str, str, str, int]
Generate = Callable[[Sequence[GenerateRequest]], Iterator[tuple[int, GenerateResponse]]]
"""As `Engine.generate`."""


class ResponseCache:
    """The responses in one folder.

    Args:
        folder: created when the first response is added.
        tolerances: fingerprint → nats by which equal log-probabilities may differ; default: half
            precision's.

    Raises:
        DataError: a log has a line that is not a response (an incomplete last line is dropped), or two
            responses to one request that disagree.
        RunFolderError: the folder is not writable or the disk is full; existing lines stay intact.
    """

    def __init__(self, folder: Path, tolerances: Mapping[str, float] | None = None) -> None:
        self.folder = Path(folder)
        self._tolerances = dict(tolerances or {})
        self._loaded: dict[tuple[str, str], dict[tuple[str, str, int], Response]] = {}

    def get_by_key(self, fingerprint: str, key: Key) -> Response | None:
        """Return the cached response to the request with this key, or None."""
        return self._load(fingerprint, key[0]).get(key[1:])

    def known(self, fingerprint: str, keys: Iterable[Key]) -> dict[Key, Response]:
        """Return the cached responses among those to `keys`."""
        found = {key: self.get_by_key(fingerprint, key) for key in keys}
        return {key: response for key, response in found.items() if response is not None}

    def add(self, fingerprint: str, responses: Sequence[tuple[Key, Response]]) -> None:
        """Append responses and flush them to disk before returning."""
        lines: dict[str, list[dict[str, Any]]] = {}
        for key, response in responses:
            lines.setdefault(key[0], []).append({"key": key[1:], "response": response.to_dict()})
        for verb, new in lines.items():
            append_jsonl(self._path(fingerprint, verb), new)
        for key, response in responses:
            self._load(fingerprint, key[0])[key[1:]] = response

    def _path(self, fingerprint: str, verb: str) -> Path:
        return self.folder / f"{fingerprint}.{verb}.jsonl"

    def _load(self, fingerprint: str, verb: str) -> dict[tuple[str, str, int], Response]:
        loaded = self._loaded.get((fingerprint, verb))
        if loaded is None:
            tolerance = self._tolerances.get(fingerprint, HALF_TOLERANCE.rounding)
            with collection_paused():
                loaded = read_responses(self._path(fingerprint, verb), verb, tolerance)
            self._loaded[fingerprint, verb] = loaded
        return loaded


def read_responses(path: Path, verb: str, tolerance: float) -> dict[tuple[str, str, int], Response]:
    """Read one response log.

    Raises:
        DataError: a line is not a response, or disagrees with an earlier one about the same request.
    """
    found: dict[tuple[str, str, int], Response] = {}
    for number, line in enumerate(read_jsonl(path), 1):
        try:
            hashed, sampling, seed = line["key"]
            key, response = (hashed, sampling, seed), response_from_dict(verb, line["response"])
            before = found.get(key)
            settled = response if before is None else settle(before, response, tolerance)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}, line {number}: not a response ({error!r})") from error
        if settled is None:
            raise DataError(
                f"{path}, line {number}: another response to the request {'/'.join(map(str, key))} than an "
                "earlier line; remove the wrong one"
            )
        found[key] = settled
    return found


def response_from_dict(verb: str, value: dict[str, Any]) -> Response:
    """Return the response to a request of this verb. Raises KeyError, TypeError or ValueError otherwise."""
    return (ScoreResponse if verb == "score" else GenerateResponse).from_dict(value)


def run_requests(
    engine: Engine, cache: ResponseCache, requests: Sequence[Request], *, quiet: bool = False
) -> list[Response]:
    """Return responses in request order, computing only what the cache lacks; equal requests run once.

    Responses are flushed at least once per second, and before this function returns or raises. A cached
    response is recomputed if the engine's `max_length` now lets a rejected or truncated request run further.

    Raises:
        RunFolderError: the cache is not writable.
    """
    keys = [request.key() for request in requests]
    unique = dict(zip(keys, requests, strict=True))
    done = reusable(unique, cache.known(engine.fingerprint, unique), engine.max_length)
    with progress(
        total=len(unique) - len(done), what=f"infer ({engine.name})", unit="req", quiet=quiet
    ) as bar:
        for key, response in compute_missing(
            engine, unique, frozenset(done), partial(cache.add, engine.fingerprint)
        ):
            done[key] = response
            bar.update(1)
    return [done[key] for key in keys]


def reusable(
    requests: Mapping[Key, Request], known: Mapping[Key, Response], max_length: int
) -> dict[Key, Response]:
    """Return the known responses that an engine which reads `max_length` positions need not recompute."""
    return {
        key: response for key, response in known.items() if _is_valid(requests[key], response, max_length)
    }


def _is_valid(request: Request, response: Response, max_length: int) -> bool:
    if response.error and response.error.startswith(INVALID_PREFIX):
        return response.error == request.validation_error(max_length)
    if isinstance(request, GenerateRequest) and isinstance(response, GenerateResponse):
        return request.is_complete(response, max_length)
    return True


def compute_missing(
    engine: Engine,
    requests: Mapping[Key, Request],
    done: Collection[Key],
    store: Callable[[Sequence[tuple[Key, Response]]], None],
    generate: Generate | None = None,
) -> Iterator[tuple[Key, Response]]:
    """Yield the responses to the requests that are not `done`, each after it has been stored.

    Args:
        engine: computes them.
        requests: all requests, by key; an engine that is exact after a restart batches as if none were done.
        done: keys that need no response.
        store: keeps some responses; called once per second while they come, with each one of a
            `RemoteEngine`, and also when the engine is interrupted.
        generate: generates responses; None is the engine itself.
    """
    seconds = 0.0 if isinstance(engine, RemoteEngine) and engine.stores_each else FLUSH_SECONDS
    scores = {key: request for key, request in requests.items() if isinstance(request, ScoreRequest)}
    prompts = {
        key: request
        for key, request in requests.items()
        if key not in done and isinstance(request, GenerateRequest)
    }
    completed = frozenset(index for index, key in enumerate(scores) if key in done)
    if len(completed) < len(scores):
        responses = score_remaining(engine, list(scores.values()), completed)
        yield from _store(store, list(scores), responses, seconds)
    if prompts:
        generated = (generate or engine.generate)(list(prompts.values()))
        yield from _store(store, list(prompts), generated, seconds)


def _store(
    store: Callable[[Sequence[tuple[Key, Response]]], None],
    keys: list[Key],
    responses: Iterator[tuple[int, Any]],
    seconds: float,
) -> Iterator[tuple[Key, Response]]:
    """Store responses in batches, also when the engine is interrupted, and pass them on."""
    pending: list[tuple[Key, Response]] = []
    flushed = time.monotonic()
    try:
        for index, response in responses:
            pending.append((keys[index], response))
            if len(pending) >= FLUSH_RESPONSES or time.monotonic() - flushed >= seconds:
                batch, pending = pending, []
                store(batch)
                flushed = time.monotonic()
                yield from batch
    finally:
        store(pending)
    yield from pending

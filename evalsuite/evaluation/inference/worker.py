"""Worker of the infer phase: computes responses with an engine; it never sees the run folder."""

import platform
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite.evaluation.environment import describe_packages, kernel_facts
from evalsuite.evaluation.processes.repeated import Repeated
from evalsuite.executors import Channel
from evalsuite.foundation import CheckpointError
from evalsuite.models.inference.base import Engine, MemoryBoundEngine
from evalsuite.models.inference.requests import Request, Response, ScoreRequest
from evalsuite.models.inference.response_cache import Key, compute_missing, reusable
from evalsuite.models.inference.shared_responses import SharedResponses
from evalsuite.protocols.thinking import generate
from evalsuite.reports.run import Checkpoint

DECODE_COST = 4
"""Cost of a decoded token in prefilled tokens; progress and the balance of jobs use it."""


def token_cost(request: Request) -> int:
    """Return the relative cost of a request, in prefilled tokens."""
    if isinstance(request, ScoreRequest):
        return len(request.context) + sum(map(len, request.continuations))
    return len(request.prompt) + DECODE_COST * request.max_tokens


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Which engine runs a checkpoint, and how; resolved on the machine of the worker."""

    engine: str
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    max_length: int | None = None

    def load(self, checkpoint: Checkpoint) -> Engine:
        """Load a checkpoint. Raises CheckpointError if its weights are not those of the run."""
        return self.check(self.open(checkpoint.path, checkpoint.label), checkpoint)

    def open(self, path: str, label: str | None = None) -> Engine:
        """Load what lies at a path."""
        from evalsuite.evaluation.inference.engines import engine_factory

        make = engine_factory(
            self.engine,
            device=self.device,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            arguments=self.engine_args,
            max_length=self.max_length,
        )
        return make(path, label)

    @staticmethod
    def check(engine: Engine, checkpoint: Checkpoint) -> Engine:
        """Return the engine of a checkpoint. Raises CheckpointError if it has other weights."""
        if engine.weights_id != checkpoint.weights_id:
            raise CheckpointError(
                f"{checkpoint.path}: weights are {engine.weights_id}, but the requests of {checkpoint.label} "
                f"were built for {checkpoint.weights_id}; the checkpoint has changed, or is another one"
            )
        return engine


class PreloadedEngine:
    """An engine that a thread loads, for a path that is certain to be run soon."""

    def __init__(self, path: str, choice: EngineChoice) -> None:
        self._loading = path, choice
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._load, name="preload", daemon=True)
        self._thread.start()

    def _load(self) -> None:
        path, choice = self._loading
        # What fails here fails again where it is needed, which reports it.
        with suppress(Exception):
            self._engine = choice.open(path)
            # The engine remembers its fingerprint, which takes a while as it covers our source code.
            _facts(self._engine)

    def take(self, checkpoint: Checkpoint, choice: EngineChoice) -> Engine | None:
        """Return the engine, once; None if it is one for something else, or could not be loaded.

        Raises:
            CheckpointError: its weights are not those of the run.
        """
        self._thread.join()
        engine, self._engine = self._engine, None
        if engine is None:
            return None
        if (checkpoint.path, choice) != self._loading:
            engine.close()
            return None
        return choice.check(engine, checkpoint)


@dataclass(frozen=True, kw_only=True)
class InferenceTask:
    """What a worker gets: a checkpoint, requests, and what is known of their responses."""

    checkpoint: Checkpoint
    choice: EngineChoice
    batches: Repeated[Sequence[Mapping[Key, Request]]]
    """Run batch by batch, so that an interruption leaves few benchmarks incomplete."""
    known: Mapping[Key, Response]
    """Responses of earlier calls."""
    batch_limits: Mapping[str, int] | None = None
    """Those that the run recorded for this checkpoint."""
    batch_limits_source: str = ""
    shared: str | None = None
    """Folder of the responses that runs share; None: they are not used."""


class InferenceWorker:
    """Keeps the engine of the last checkpoint, and sends responses as they are computed.

    Messages: ``engine`` (facts of it and of the machine), ``responses`` (rows of a response log, with their
    cost, and whether they are shared ones), ``spent`` (seconds, and the kernels that ran).
    """

    def __init__(self, preloaded: PreloadedEngine | None = None) -> None:
        self._preloaded = preloaded
        self._engine: Engine | None = None
        self._loaded: tuple[Checkpoint, EngineChoice] | None = None

    def run(self, task: InferenceTask, channel: Channel) -> dict[str, Any]:
        """Compute what is missing.

        Returns:
            ``failed``: responses that are errors, known ones included; ``reason``: of the first.
        """
        started, computed = time.monotonic(), 0
        engine = self._open(task)
        channel.send({"engine": _facts(engine)})
        failed: list[str] = []
        shared = self._shared(task, engine)
        try:
            for requests in task.batches.value:
                known = {key: task.known[key] for key in requests if key in task.known}
                done = reusable(requests, known, engine.max_length)
                send = partial(_send, channel, task.checkpoint.label, engine.fingerprint, requests)
                found = {key: shared[key] for key in requests if key in shared and key not in done}
                found = reusable(requests, found, engine.max_length)
                send(list(found.items()), shared=True)
                done |= found
                # Other runs' responses belong to no batch that was interrupted.
                own = {key: request for key, request in requests.items() if key not in found}
                write = partial(generate, engine)
                for key, response in compute_missing(engine, own, frozenset(done), send, write):
                    done[key] = response
                    computed += 1
                failed += [error for key in requests if (error := done[key].error)]
        finally:
            if computed:
                spent = {"label": task.checkpoint.label, "seconds": time.monotonic() - started}
                channel.send({"spent": spent, **kernel_facts()})
        return {"failed": len(failed), "reason": next(iter(failed), "")}

    def close(self) -> None:
        """Release the engine."""
        # vLLM holds its memory until it exits, and the next instance measures what is free.
        if self._engine is not None:
            self._engine.close()
        self._engine = self._loaded = None

    @staticmethod
    def _shared(task: InferenceTask, engine: Engine) -> dict[Key, Response]:
        if task.shared is None:
            return {}
        keys = {key for batch in task.batches.value for key in batch}
        missing = keys - task.known.keys()
        return SharedResponses(Path(task.shared)).known(engine.fingerprint, missing) if missing else {}

    def _open(self, task: InferenceTask) -> Engine:
        if self._engine is None or self._loaded != (task.checkpoint, task.choice):
            self.close()
            if self._preloaded is not None:
                self._engine, self._preloaded = self._preloaded.take(task.checkpoint, task.choice), None
            if self._engine is None:
                self._engine = task.choice.load(task.checkpoint)
            self._loaded = task.checkpoint, task.choice
        if task.batch_limits is not None and isinstance(self._engine, MemoryBoundEngine):
            self._engine.restore_batch_limits(task.batch_limits, task.batch_limits_source)
        return self._engine


def _send(
    channel: Channel,
    label: str,
    fingerprint: str,
    requests: Mapping[Key, Request],
    responses: Sequence[tuple[Key, Response]],
    *,
    shared: bool = False,
) -> None:
    if responses:
        rows = [[*key, response.to_dict()] for key, response in responses]
        cost = sum(token_cost(requests[key]) for key, _ in responses)
        message = {"responses": rows, "fingerprint": fingerprint, "label": label, "cost": cost}
        channel.send(message | {"shared": shared})


def _facts(engine: Engine) -> dict[str, Any]:
    limits = {"batch_limits": dict(engine.batch_limits)} if isinstance(engine, MemoryBoundEngine) else {}
    return {
        "weights_id": engine.weights_id,
        "engine": engine.name,
        "fingerprint": engine.fingerprint,
        "max_length": engine.max_length,
        "versions": dict(engine.versions),
        **limits,
        **({"notice": engine.notice} if engine.notice else {}),
        "host": platform.node(),
        "machine": describe_packages(),
    }

"""Answer: the engine answers every question of every checkpoint, and nothing twice.

Needs the run folder, the checkpoints and `evalsuite.models`; neither harness nor pydantic.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evalsuite.evaluator.environment import note_answering, note_engine, note_kernels
from evalsuite.evaluator.layout import Asked, Cell, Index, read_questions
from evalsuite.foundation import CheckpointError, ConfigError, nearest, progress
from evalsuite.models.engine.base import Engine, score_rest
from evalsuite.models.engine.requests import Answer, GenerateRequest, Request, ScoreRequest
from evalsuite.models.engine.store import AnswerStore, answer_all

if TYPE_CHECKING:
    from evalsuite.models.engine.vllm_engine import VllmEngine

ENGINES = ("torch", "vllm")
WRITING = 4
"""A written token costs about as much time as this many that are read; only the bar's forecast uses it."""


@dataclass(slots=True)
class Answered:
    """What became of the requests of one checkpoint."""

    computed: int = 0
    """Answers that had to be computed; the rest was there."""
    failed: int = 0
    """Answers that are errors, computed now or before."""
    reason: str = ""
    """Of the first that failed."""

    def count(self, answers: Sequence[Answer]) -> None:
        """Add what failed among these."""
        reasons = [each.error for each in answers if each.error]
        self.failed += len(reasons)
        self.reason = self.reason or next(iter(reasons), "")


class MakeEngine(Protocol):
    """Loads a checkpoint and gives the engine that answers for it."""

    def __call__(self, path: str, label: str) -> Engine:
        """Raises CheckpointError for one that cannot be loaded."""


def engine_maker(
    engine: str,
    *,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    arguments: Mapping[str, Any] | None = None,
) -> MakeEngine:
    """Return what loads checkpoints for one of our engines.

    Raises:
        ConfigError: an engine that is not built in, or arguments for one that takes none.
        MissingDependencyError: when an engine is made, vLLM is not there.
    """
    if engine not in ENGINES:
        raise ConfigError(f"unknown engine '{engine}'{nearest(engine, ENGINES)}")
    if engine == "vllm":

        def make_vllm(path: str, label: str) -> Engine:
            kind = placement(device, dtype)[1]
            return serve(path, kind, arguments, trust_remote_code=trust_remote_code)

        return make_vllm
    if arguments:
        raise ConfigError(f"engine {engine} takes no arguments, such as {next(iter(arguments))}")

    def make(path: str, label: str) -> Engine:
        from evalsuite.models.checkpoints import load_checkpoint
        from evalsuite.models.engine.torch_engine import TorchEngine

        where, kind = placement(device, dtype)
        checkpoint = load_checkpoint(
            path, dtype=kind, device=where, trust_remote_code=trust_remote_code, label=label
        )
        return TorchEngine(checkpoint)

    return make


def serve(
    path: str, dtype: str, arguments: Mapping[str, Any] | None, *, trust_remote_code: bool
) -> "VllmEngine":
    """Return vLLM's engine for a checkpoint; it starts when it is first asked.

    Raises:
        CheckpointError, ConfigError: a checkpoint or arguments that it cannot be served with.
        MissingDependencyError: no vLLM, or a version that was not tested.
    """
    from evalsuite.models.checkpoints import describe_checkpoint
    from evalsuite.models.engine.vllm_engine import VllmEngine

    info = describe_checkpoint(path, trust_remote_code=trust_remote_code)
    trusted = {"trust_remote_code": True} if trust_remote_code else {}
    return VllmEngine(info, dtype=dtype, arguments={**trusted, **(arguments or {})})


def refuse_early(engine: str, make: MakeEngine, paths: Sequence[str]) -> None:
    """Raise what `make` raises for a checkpoint that vLLM cannot serve, before an hour went into others.

    Making vLLM's engine starts nothing; other engines load the checkpoint, and are made when it is its turn.
    """
    if engine == "vllm":
        for path in paths:
            make(path, "")


def placement(device: str, dtype: str) -> tuple[str, str]:
    """Resolve `auto`: a GPU if there is one; float32 on a CPU, where bfloat16 is slow, else bfloat16."""
    import torch

    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return where, ("float32" if where == "cpu" else "bfloat16") if dtype == "auto" else dtype


def find(index: Index, paths: Sequence[str], *, trust_remote_code: bool = False) -> list[Asked]:
    """Return the checkpoints of a run that `paths` name.

    On another machine they may lie elsewhere: what counts is their weights.

    Raises:
        ConfigError: a checkpoint that was not asked anything in this run.
    """
    by_path = {asked.path: asked for asked in index.checkpoints}
    by_weights = {asked.weights_id: asked for asked in index.checkpoints}
    found = {}
    for path in paths:
        asked = by_path.get(path)
        if asked is None:
            from evalsuite.models.checkpoints import describe_checkpoint

            weights_id = describe_checkpoint(path, trust_remote_code=trust_remote_code).weights_id
            if weights_id not in by_weights:
                raise ConfigError(f"{path}: not a checkpoint of this run; render it first")
            asked = replace(by_weights[weights_id], path=path)
        found[asked.weights_id] = asked
    return list(found.values())


def answer(
    run: Path,
    index: Index,
    checkpoints: Sequence[Asked],
    make: MakeEngine,
    *,
    protocols: Sequence[str] = (),
    groups: Sequence[Sequence[str]] = (),
    quiet: bool = False,
) -> dict[str, Answered]:
    """Answer everything that is asked of `checkpoints`; each answer is on disk when it is counted.

    Args:
        run, index: what is asked.
        checkpoints: of whom.
        make: gives their engines.
        protocols: answer only these; empty: all.
        groups: answer only these benchmarks, each group whole before the next begins, so that a machine that
            is taken away has left as few benchmarks in part as can be; empty: all of them together.
        quiet: no progress bar.

    Returns:
        Per label, how many answers had to be computed, and how many are errors.

    Raises:
        CheckpointError: a checkpoint whose weights are not those that were asked.
        ConfigError: a benchmark that the run does not ask, or one in two groups.
        RunFolderError: the folder holds answers of another engine, dtype or version, or cannot be written.
    """
    parts = _parts(index, protocols, groups)
    requests = {
        tokenizer: [_requests(run, cells, tokenizer) for cells in parts]
        for tokenizer in dict.fromkeys(each.tokenizer for each in checkpoints)
    }
    store = AnswerStore(Path(run) / "answers")
    done: dict[str, Answered] = {}
    total = sum(cost(one) for each in checkpoints for part in requests[each.tokenizer] for one in part)
    with progress(total=total, what="answer", unit="tok", quiet=quiet) as bar:
        for number, asked in enumerate(checkpoints, 1):
            bar.set_description(f"answer {asked.label} ({number}/{len(checkpoints)})")
            started = time.monotonic()
            engine = make(asked.path, asked.label)
            _same_weights(engine, asked)
            note_engine(run, asked.weights_id, engine)
            counting = _Counting(engine, bar)
            tally = done[asked.label] = Answered()
            start = bar.n
            try:
                for mine in requests[asked.tokenizer]:
                    tally.count(answer_all(counting, store, mine, quiet=True))
                    # What the store had costs nothing, and still counts as done.
                    start += sum(map(cost, mine))
                    bar.update(start - bar.n)
            finally:
                note_kernels(run)
                if counting.answered:
                    spent = time.monotonic() - started
                    note_answering(run, asked.label, counting.answered, spent, protocols)
                # vLLM holds its memory until it has ended, and the next one counts what is free.
                getattr(engine, "close", lambda: None)()
            tally.computed = counting.answered
            del engine, counting
    return done


def _parts(index: Index, protocols: Sequence[str], groups: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """The cells that are answered together, group by group."""
    cells = [cell for cell in index.cells if not protocols or cell.protocol in protocols]
    if not groups:
        return [cells]
    known = list(dict.fromkeys(cell.benchmark for cell in index.cells))
    seen: set[str] = set()
    for name in (name for group in groups for name in group):
        if name not in known:
            raise ConfigError(f"benchmark '{name}' is not asked in this run{nearest(name, known)}")
        if name in seen:
            raise ConfigError(f"benchmark '{name}' is named twice")
        seen.add(name)
    return [[cell for cell in cells if cell.benchmark in group] for group in groups]


def _requests(run: Path, cells: Sequence[Cell], tokenizer: str) -> list[Request]:
    return [
        request
        for cell in cells
        for question in read_questions(run, tokenizer, cell)
        for request in cell.requests(question)
    ]


def cost(request: Request) -> int:
    """How long a request may take, in tokens read."""
    if isinstance(request, ScoreRequest):
        return len(request.context) + sum(map(len, request.continuations))
    return len(request.prompt) + WRITING * request.sampling.max_new_tokens


def _same_weights(engine: Engine, asked: Asked) -> None:
    checkpoint = getattr(engine, "checkpoint", None)
    found = getattr(checkpoint, "weights_id", asked.weights_id)
    if found != asked.weights_id:
        raise CheckpointError(
            f"{asked.path}: its weights are {found}, those of {asked.label} were {asked.weights_id} when "
            "they were asked; it was changed since, or is another checkpoint"
        )


class _Counting:
    """An engine that moves a bar and counts what it answers."""

    def __init__(self, engine: Engine, bar: Any) -> None:
        self._engine = engine
        self._bar = bar
        self.name = engine.name
        self.fingerprint = engine.fingerprint
        self.max_length = engine.max_length
        self.answered = 0

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, Any]]:
        return self._counted(requests, self._engine.score(requests))

    def score_rest(
        self, requests: Sequence[ScoreRequest], known: Collection[int]
    ) -> Iterator[tuple[int, Any]]:
        return self._counted(requests, score_rest(self._engine, requests, known))

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Any]]:
        return self._counted(requests, self._engine.generate(requests))

    def _counted(
        self, requests: Sequence[Request], answers: Iterator[tuple[int, Any]]
    ) -> Iterator[tuple[int, Any]]:
        for number, given in answers:
            self.answered += 1
            self._bar.update(cost(requests[number]))
            yield number, given

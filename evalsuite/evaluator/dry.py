"""`--dry-run`: what a run would ask, counted without writing or loading anything large."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalsuite.evaluator.answer import cost, placement
from evalsuite.evaluator.asking import gather, resolve_suite
from evalsuite.evaluator.checkpoints import Subject
from evalsuite.evaluator.render import render_cell, shortest
from evalsuite.evaluator.summary import Summary
from evalsuite.models.engine.prefixes import families
from evalsuite.models.engine.requests import GenerateRequest, Request, ScoreRequest
from evalsuite.protocols.encode import Encoder


@dataclass
class Estimate(Summary):
    """What a run would ask of each checkpoint."""

    rows: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    """Benchmark, protocol, documents, requests, tokens read, tokens written at most."""
    checkpoints: int = 0
    parameters: int = 0
    """Of all checkpoints together."""
    time: str = ""
    """How long answering is expected to take."""

    def __str__(self) -> str:
        heads = ("documents", "requests", "read", "written ≤")
        lines = [f"{'benchmark':24} {'protocol':14} " + " ".join(f"{head:>12}" for head in heads)]
        lines += [
            f"{name:24} {protocol:14} {documents:12,} {requests:12,} {read:12,} {written:12,}"
            for name, protocol, documents, requests, read, written in self.rows
        ]
        documents, requests, read, written = (
            sum(column) for column in list(zip(*self.rows, strict=True))[2:]
        )
        lines.append(f"{'each checkpoint':39} {documents:12,} {requests:12,} {read:12,} {written:12,}")
        work = 2 * self.parameters * (read + written)
        lines.append(
            f"{self.checkpoints} checkpoints: {self.checkpoints * requests:,} requests, "
            f"at most {work:.2g} FLOP"
        )
        lines += [self.time] if self.time else []
        return "\n".join([*lines, *self.notices()])


def estimate(
    suite: str | Path,
    checkpoints: Sequence[str],
    teacher: str | None,
    data_dir: Path | str | None,
    limit: int | None,
    *,
    engine: str = "torch",
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    skip_missing: bool = False,
) -> Estimate:
    """Render everything in memory, count, and time a few layers of each model. Raises as `evaluate` does."""
    from evalsuite.evaluator.checkpoints import describe

    subjects = describe(checkpoints, teacher, trust_remote_code=trust_remote_code)
    asking = resolve_suite(suite, subjects, limit=limit)
    gathered = gather(asking, subjects, data_dir, skip_missing=skip_missing)
    asking, found = asking.without(gathered.left_out), gathered.documents
    encoder = Encoder(subjects[0].tokenizer)
    result = Estimate(
        run=Path(),
        checkpoints=len(subjects),
        parameters=sum(subject.parameters or 0 for subject in subjects),
        partial=gathered.partial,
        left_out=gathered.left_out,
    )
    asked: list[Request] = []
    for cell in asking.cells({name: len(documents) for name, documents in found.items()}):
        questions = render_cell(asking, cell, found[cell.benchmark], encoder, shortest(subjects), data_dir)
        requests = [request for question in questions for request in cell.requests(question)]
        written = sum(r.sampling.max_new_tokens for r in requests if isinstance(r, GenerateRequest))
        read = sum(len(r.prompt) if isinstance(r, GenerateRequest) else cost(r) for r in requests)
        result.rows.append((cell.benchmark, cell.protocol, cell.documents, len(requests), read, written))
        asked += requests
    result.time = _time(subjects, asked, engine, *placement(device, dtype), trust_remote_code)
    return result


def _time(
    subjects: Sequence[Subject],
    requests: Sequence[Request],
    engine: str,
    device: str,
    dtype: str,
    trust_remote_code: bool,
) -> str:
    """How long answering will take, in words."""
    if engine != "torch":
        return f"expected time: not known for engine {engine}"
    from evalsuite.models.forecast import forecast

    read, written, answers = _work(requests)
    reading = writing = 0.0
    for subject in subjects:
        try:
            speed = forecast(
                subject.config,
                subject.tokenizer,
                device=device,
                dtype=dtype,
                parameters=subject.parameters or 1,
                length=max(1, read // len(requests)),
                answers=answers,
                trust_remote_code=trust_remote_code,
            )
        except Exception as error:  # It is a courtesy: what would run must not fail for it.
            return f"expected time: not known, a few layers of {subject.label} do not run alone ({error})"
        reading += speed.seconds(read, 0)
        writing += speed.seconds(0, written)
    parts = [f"{duration(reading)} reading"]
    if written:
        parts.append(f"at most {duration(writing)} writing")
    return (
        f"expected time of answering on {device} in {dtype}: {' and '.join(parts)}, by a few layers of each "
        "model timed just now; loading, rendering and judging come on top"
    )


def _work(requests: Sequence[Request]) -> tuple[int, int, int]:
    """Tokens that are read and written (at most), and how many answers are written.

    What log-likelihood contexts begin with in common is read once.
    """
    scores = [request for request in requests if isinstance(request, ScoreRequest)]
    prompts = [request for request in requests if isinstance(request, GenerateRequest)]
    shared = sum(
        length * (len(numbers) - 1) for length, numbers in families([request.context for request in scores])
    )
    read = sum(map(cost, scores)) - shared + sum(len(request.prompt) for request in prompts)
    return read, sum(request.sampling.max_new_tokens for request in prompts), len(prompts)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

"""`--dry-run`: what a run would ask, counted without writing or loading anything large."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evalsuite.evaluator.answer import cost
from evalsuite.evaluator.asking import gather, resolve_suite
from evalsuite.evaluator.checkpoints import describe
from evalsuite.evaluator.render import render_cell, shortest
from evalsuite.evaluator.summary import Summary
from evalsuite.models.engine.requests import GenerateRequest
from evalsuite.protocols.encode import Encoder


@dataclass
class Estimate(Summary):
    """What a run would ask of each checkpoint."""

    rows: list[tuple[str, str, int, int, int, int]] = field(default_factory=list)
    """Benchmark, protocol, documents, requests, tokens read, tokens written at most."""
    checkpoints: int = 0
    parameters: int = 0
    """Of all checkpoints together."""

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
        return "\n".join([*lines, *self.notices()])


def estimate(
    suite: str | Path,
    checkpoints: Sequence[str],
    teacher: str | None,
    data_dir: Path | str | None,
    limit: int | None,
    *,
    trust_remote_code: bool = False,
    skip_missing: bool = False,
) -> Estimate:
    """Render everything in memory and count. Raises as `evaluate` does."""
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
    for cell in asking.cells({name: len(documents) for name, documents in found.items()}):
        questions = render_cell(asking, cell, found[cell.benchmark], encoder, shortest(subjects), data_dir)
        requests = [request for question in questions for request in cell.requests(question)]
        written = sum(r.sampling.max_new_tokens for r in requests if isinstance(r, GenerateRequest))
        read = sum(len(r.prompt) if isinstance(r, GenerateRequest) else cost(r) for r in requests)
        result.rows.append((cell.benchmark, cell.protocol, cell.documents, len(requests), read, written))
    return result

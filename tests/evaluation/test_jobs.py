"""A run is split for several workers: each document once, whole checkpoints first, small parts last."""

import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.evaluation.inference import jobs as module
from evalsuite.evaluation.inference.jobs import Document, InferenceJob, Part, RequestReader, split
from evalsuite.evaluation.inference.worker import EngineChoice, token_cost
from evalsuite.evaluation.run_paths import Cell
from evalsuite.executors.queue import JobQueue
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.protocols.request_set import RequestSet
from evalsuite.reports.run import Benchmark, Checkpoint, Manifest, ProtocolSettings

CELLS = [
    Cell(benchmark=name, protocol="loglikelihood", documents=count) for name, count in (("a", 90), ("b", 7))
]
DOCUMENTS = {
    cell.benchmark: [
        [(("score", str(length), "", 0), ScoreRequest((1,) * length, ((2, 3),)))]
        for length in random.Random(cell.benchmark).choices(range(10, 60), k=cell.documents)
    ]
    for cell in CELLS
}
COST = sum(token_cost(request) for each in DOCUMENTS.values() for document in each for _, request in document)


class Reader(RequestReader):
    def documents(self, checkpoint: Checkpoint, cell: Cell) -> list[Document]:
        return DOCUMENTS[cell.benchmark]


def make_jobs(count: int, tmp_path: Path) -> list[InferenceJob]:
    """One job per checkpoint, all with the same documents."""
    refs = [Checkpoint(label=f"s{i}", path=f"s{i}", weights_id=f"s{i}", tokenizer="t") for i in range(count)]
    benchmark = Benchmark(
        name="b",
        title="B",
        category="other",
        protocols={"generation": ProtocolSettings(metric="m", documents=1)},
    )
    manifest = Manifest(suite="s", created="", benchmarks=(benchmark,), checkpoints=tuple(refs))
    whole: Any = tuple(Part(cell, 0, cell.documents) for cell in CELLS)
    return [
        InferenceJob(
            reader=Reader(tmp_path, manifest),
            cache=ResponseCache(tmp_path),
            checkpoint=ref,
            choice=EngineChoice(engine="torch"),
            batches=(whole,),
            cost=float(COST),
        )
        for ref in refs
    ]


def finish(jobs: list[InferenceJob], workers: int) -> float:
    """Return when the last worker ends, in checkpoints, if every job takes what it costs."""
    queue = JobQueue(jobs)
    ends = dict.fromkeys(range(workers), 0.0)
    groups: dict[int, str | None] = dict.fromkeys(range(workers))
    while (index := queue.take(groups[worker := min(ends, key=lambda each: ends[each])])) is not None:
        ends[worker] += jobs[index].cost / COST
        groups[worker] = jobs[index].group
    return max(ends.values())


@pytest.mark.parametrize(
    ("count", "workers"), [(1, 2), (1, 8), (2, 2), (3, 2), (10, 2), (10, 3), (11, 2), (40, 8)]
)
def test_every_document_is_in_one_part_and_workers_end_together(
    count: int, workers: int, tmp_path: Path
) -> None:
    found = split(make_jobs(count, tmp_path), workers)
    for label in {job.checkpoint.label for job in found}:
        mine = [part for job in found if job.checkpoint.label == label for part in job.batches[0]]
        for cell in CELLS:
            numbers = [number for each, *ends in mine if each == cell for number in range(*ends)]
            assert numbers == list(range(cell.documents))
    assert sum(job.cost for job in found) == count * COST
    assert len(found) <= count + 4 * workers
    assert finish(found, workers) <= 1.1 * count / workers + 0.02


def test_only_the_last_checkpoint_is_split(tmp_path: Path) -> None:
    found = split(make_jobs(10, tmp_path), 2)
    assert [job.checkpoint.label for job in found] == [*(f"s{i}" for i in range(10)), "s9"]
    assert found[-1].cost == pytest.approx(COST / 2, rel=0.02)


def test_requests_are_read_once_for_checkpoints_of_one_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = make_jobs(1, tmp_path)
    read: list[str] = []
    request = ScoreRequest((1,), ((2,),))

    def read_requests(run: Path, tokenizer: str, cell: Cell) -> list[RequestSet]:
        read.append(f"{tokenizer} {cell.benchmark}")
        return [RequestSet("d", None, "", (request,), ((0, 0),))]

    monkeypatch.setattr(module, "read_requests", read_requests)
    reader = RequestReader(tmp_path, job.reader.manifest)
    for tokenizer in ("t", "t", "u", "t"):
        for cell in CELLS:
            found = reader.documents(replace(job.checkpoint, tokenizer=tokenizer), cell)
            assert found == [[(request.key(), request)]]
    assert read == ["t a", "t b", "u a", "u b", "t a", "t b"]


def test_requests_go_to_a_worker_once_for_jobs_with_the_same_parts(tmp_path: Path) -> None:
    jobs = make_jobs(3, tmp_path)
    jobs = [replace(job, reader=jobs[0].reader) for job in [*jobs[:2], *split(jobs[2:], 2)]]
    sent = [job.reader.batches(job.checkpoint, job.batches) for job in jobs]
    found = [pickle.loads(pickle.dumps(each)) for each in sent]
    for batches in (sent, found):
        assert batches[0] is batches[1]
        assert len({id(each) for each in batches}) == len(batches) - 1 >= 3
    assert [each.value for each in found] == [each.value for each in sent]
    requests = [dict(pair for document in documents for pair in document) for documents in DOCUMENTS.values()]
    assert found[0].value == [requests[0] | requests[1]]

"""Worker processes and shares: they change who tokenizes a document, never which documents come when."""

import json
import multiprocessing
import os
import tempfile
import threading
from contextlib import closing, nullcontext
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from evalsuite.distill.data import documents, loader, side_by_side, workers
from evalsuite.distill.data.documents import Share
from evalsuite.distill.data.exchange import interleave_shares
from evalsuite.distill.data.loader import DataSources, StageDataLoader, validate_data
from evalsuite.distill.data.packing import Document
from evalsuite.distill.data.preparation import Preparation
from evalsuite.distill.data.workers import WorkerPool, default_num_workers
from evalsuite.foundation import DataError
from tests.distill.data.worker_tasks import Tasks
from tests.distill.stage_data import stage_data

WORDS = ["house", "of", "Igor", "in", "Dunmore", "likes", "soup", "with", "a", "fox"]


@pytest.fixture
def forked(monkeypatch):
    """Fork worker processes, which then import nothing again; those of a run are spawned."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: context)


@pytest.fixture
def pool(forked):
    made = WorkerPool(Tasks(), 2)  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_temporary_folder_that_cannot_be_written_is_named(pool, monkeypatch, tmp_path):
    """Where the processes read what they need; nothing half written is left to the next call."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    for _ in range(2):
        with pytest.raises(DataError, match=r"\(No such file or directory\): make room, or set TMPDIR"):
            next(pool.map("square", [(1, (1,))]))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert next(pool.map("square", [(1, (2,))]))[1][0] == 4
    assert len(list(tmp_path.iterdir())) == 1
    pool.close()
    assert list(tmp_path.iterdir()) == []


def test_results_come_in_order_from_processes_that_work_ahead(pool):
    taken = []

    def numbers():
        for number in range(20):
            taken.append(number)
            yield number, (number,)

    results = pool.map("square", numbers())
    label, (squared, process) = next(results)
    assert (label, squared) == (0, 0)
    assert process != os.getpid()
    assert len(taken) == workers.LOOKAHEAD * 2
    assert [(label, value[0]) for label, value in results] == [(n, n * n) for n in range(1, 20)]
    # Errors arrive with the task that raised them.
    with pytest.raises(DataError, match="row 3 is damaged"):
        next(pool.map("refuse", [(None, (3,))]))


def test_tasks_of_a_process_that_dies_are_computed_again(pool, tmp_path):
    tasks = [(number, (number, str(tmp_path))) for number in range(12)]
    assert [result for _, result in pool.map("die_once", tasks)] == list(range(12))
    assert (tmp_path / "died").exists()


def test_two_uses_of_a_pool_restart_it_once(pool, tmp_path, monkeypatch):
    started, executor = [], workers.ProcessPoolExecutor

    def counted(*args: Any, **options: Any) -> Any:
        started.append(executor(*args, **options))
        return started[-1]

    monkeypatch.setattr(workers, "ProcessPoolExecutor", counted)
    dying = pool.map("die_once", [(number, (number, str(tmp_path))) for number in range(24)])
    others = pool.map("square", [(number, (number,)) for number in range(24)])
    found = [(first, squared) for (_, first), (_, (squared, _)) in zip(dying, others, strict=True)]
    assert found == [(number, number * number) for number in range(24)]
    assert len(started) == 2


def test_processes_that_always_die_are_reported(pool):
    with pytest.raises(DataError, match=r"num_workers: 2\) died repeatedly .* \(lower 'num_workers'"):
        list(pool.map("die", [(0, (0,))]))


@pytest.fixture
def recipe(tmp_path, small_recipe, stage, monkeypatch):
    """Three sources in small groups, shards and tasks."""
    monkeypatch.setattr(documents, "GROUP_SIZE", 16)
    monkeypatch.setattr(documents, "TASK_CHARACTERS", 200)
    rows = [
        {
            "text": " ".join(WORDS[(number * k) % 10] for k in range(3 + number % 29)),
            "messages": [
                {"role": "user", "content": f"{WORDS[number % 10]} {WORDS[number // 10 % 10]}"},
                {"role": "assistant", "content": " ".join(WORDS[: number % 9 + 1])},
            ],
        }
        for number in range(36)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = {"kind": "local", "files": [str(tmp_path / "rows.jsonl")], "shuffle_buffer_size": 25}
    data = {
        "pocket": {"kind": "pocket", "max_haystack_tokens": 128},
        "text": {**local, "repeat_chunk_tokens": 8},
        "chat": {**local, "messages": "messages", "chat_template": "chatml", "min_characters": 50},
    }
    mixed = stage("s", "kd", data=dict.fromkeys(data, 1), batch_size=4, tokens="10M", packing="documents")
    return small_recipe("teacher", data=data, stages=[mixed])


def batches(recipe, tokenizer, count: int, *, sources: DataSources | None = None, **options: Any) -> list:
    sources = sources or DataSources(recipe.data, tokenizer, seed=recipe.seed)
    data = StageDataLoader(sources, recipe.stages[0], **options)
    return list(islice(data, count))


def content(steps) -> list:
    return [[batch.input_ids.tolist() for batch in step.micro_batches] for step in steps]


def test_any_number_of_workers_gives_and_resumes_the_same_sequences(recipe, tokenizer):
    alone = batches(recipe, tokenizer, 40)
    epochs = {name: state["epoch"] for name, state in alone[-1].state["sources"].items()}
    assert min(epochs["text"], epochs["chat"]) >= 1
    sources = DataSources(recipe.data, tokenizer, seed=recipe.seed, num_workers=2)
    try:
        helped = batches(recipe, tokenizer, 40, sources=sources)
        assert content(helped) == content(alone)
        assert [step.state for step in helped] == [step.state for step in alone]
        for cut in (1, 17, 28):
            state = json.loads(json.dumps(alone[cut - 1].state))
            assert content(batches(recipe, tokenizer, 12, sources=sources, state=state)) == content(
                alone[cut : cut + 12]
            )
            state = json.loads(json.dumps(helped[cut - 1].state))
            assert content(batches(recipe, tokenizer, 12, state=state)) == content(alone[cut : cut + 12])
    finally:
        sources.close()


@pytest.mark.parametrize("broken", [["text"], ["chat"], ["chat", "text"]])
@pytest.mark.usefixtures("forked")
def test_any_number_of_workers_refuses_the_same_data(recipe, tokenizer, broken):
    data = dict(recipe.data)
    for name in broken:
        data[name] = data[name].model_copy(update={"files": [f"/nowhere/{name}.jsonl"]})
    refused = []
    for num_workers in (0, 1):
        with closing(DataSources(data, tokenizer, seed=recipe.seed, num_workers=num_workers)) as sources:
            with pytest.raises(DataError) as error:
                validate_data(sources, recipe.stages)
            refused.append(str(error.value))
    assert refused[0] == refused[1]


@pytest.fixture
def counting(monkeypatch):
    """Preparations in order of creation; each counts the rows and the examples that it has seen."""
    made = []

    class Counting(Preparation):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.num_parsed = self.num_tokenized = 0
            made.append(self)

        def parse(self, name, chunk):
            self.num_parsed += len(chunk.rows)
            return super().parse(name, chunk)

        def tokenize(self, name, examples, mask_prompt):
            self.num_tokenized += len(examples)
            return super().tokenize(name, examples, mask_prompt)

    monkeypatch.setattr(loader, "Preparation", Counting)
    return made


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_tokenization_and_batches(recipe, tokenizer, world_size, counting):
    """Threads stand in for the processes of a run."""
    steps, barrier = 30, threading.Barrier(world_size)
    posted: list[list[Document]] = [[]] * world_size
    found: list[list] = [[]] * world_size

    def run(rank: int) -> None:
        def exchange(own: list[Document]) -> list[Document]:
            posted[rank] = own
            barrier.wait(60)
            received = interleave_shares(posted)
            barrier.wait(60)
            return received

        sources = DataSources(
            recipe.data, tokenizer, seed=recipe.seed, share=Share(rank, world_size, exchange)
        )
        found[rank] = batches(recipe, tokenizer, steps, sources=sources, rank=rank, world_size=world_size)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = batches(recipe, tokenizer, steps)
    for rank, local in enumerate(found):
        assert [step.state for step in local] == [step.state for step in alone]
        assert [step.num_loss_tokens for step in local] == [step.num_loss_tokens for step in alone]
        # Sequences of packed documents are stacked, so a batch has one row per sequence.
        assert [[row for batch in step for row in batch] for step in content(local)] == [
            [row for batch in step for row in batch][rank::world_size] for step in content(alone)
        ]
    *shares, whole = [preparation.num_tokenized for preparation in counting]
    assert sum(shares) == whole
    assert max(shares) <= 1.2 * whole / world_size


@pytest.mark.parametrize("group_size", [16, 512])
def test_stages_that_begin_at_the_same_place_tokenize_it_once(
    recipe, tokenizer, monkeypatch, counting, group_size
):
    monkeypatch.setattr(documents, "GROUP_SIZE", group_size)
    alone, full = batches(recipe, tokenizer, 40), recipe.stages[0]
    masked = full.model_copy(update={"loss_mask": "completion"})
    sources, found = DataSources(recipe.data, tokenizer, seed=recipe.seed), []
    for stage in (full, masked, full, masked):
        validate_data(sources, [stage])
        found.append(counting[-1].num_tokenized)
    if group_size == 512:
        assert found == [found[0], *[2 * found[0]] * 3]
        sources.share = Share(0, 2)
        validate_data(sources, [full])
        assert counting[-1].num_tokenized == pytest.approx(2.5 * found[0], abs=3)
        sources.share = Share()
    for _ in range(2):
        # The second time, what the iterations began with is not remembered any more.
        steps = batches(recipe, tokenizer, 40, sources=sources)
        assert content(steps) == content(alone)
        assert [step.state for step in steps] == [step.state for step in alone]


@pytest.mark.parametrize(("row", "is_first"), [(5, True), (30, False)])
def test_a_turn_that_the_template_drops_is_refused_when_it_is_tokenized(
    recipe, tokenizer, monkeypatch, row, is_first
):
    monkeypatch.setattr(documents, "GROUP_SIZE", 25)
    rows = Path(recipe.data["chat"].files[0])
    lines = rows.read_text().splitlines(keepends=True)
    lines[row - 1] = lines[row - 1].replace('"assistant", "content": "', '"assistant", "content": "DROPPED ')
    rows.write_text("".join(lines))
    template = (
        "{% for each in messages %}{{ each.role }}: {{ each.content.split('DROPPED')[0] }}\n{% endfor %}"
    )
    changes = {"chat_template": template, "min_characters": 0}
    data = {"chat": recipe.data["chat"].model_copy(update=changes)}
    stage = recipe.stages[0].model_copy(update={"data": "chat", "batch_size": 1})
    sources = DataSources(data, tokenizer, seed=recipe.seed)
    message = rf"^data source 'chat': .*rows\.jsonl, row {row}: the chat template drops or rewrites the last"
    with pytest.raises(DataError, match=message) if is_first else nullcontext():
        validate_data(sources, [stage])
    with pytest.raises(DataError, match=message):
        list(islice(StageDataLoader(sources, stage), 40))


def test_a_shuffle_buffer_is_read_while_the_one_before_is_consumed(recipe, tokenizer, monkeypatch, counting):
    monkeypatch.setattr(side_by_side, "CHUNK_ROWS", 8)
    data = {"text": recipe.data["text"].model_copy(update={"shuffle_buffer_size": 24})}
    stage = recipe.stages[0].model_copy(update={"data": "text", "packing": "concat", "batch_size": 1})
    recipe = recipe.model_copy(update={"data": data, "stages": [stage]})
    read = []
    for step in stage_data(recipe, tokenizer, stage):
        read.append(counting[0].num_parsed)
        if step.state["sources"]["text"]["epoch"] == 2:
            break
    assert 24 <= read[0] <= 32
    assert read[-1] >= 72
    # Without a pause for a whole buffer: a step reads as many rows as a group of documents has, and a chunk.
    assert max(after - before for before, after in pairwise(read)) <= 16 + 8


def test_the_number_of_workers_follows_the_cores_of_a_gpu(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert default_num_workers("cpu", 1) == 0
    assert [default_num_workers("cuda", processes) for processes in (1, 4, 8, 16)] == [8, 3, 1, 1]

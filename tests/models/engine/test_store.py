"""Answers on disk: never computed twice, never lost, never another engine's."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from evalsuite.foundation import DataError, RunFolderError
from evalsuite.models.engine import (
    AnswerStore,
    GenerateAnswer,
    GenerateRequest,
    Sampling,
    ScoreAnswer,
    ScoreRequest,
    answer_all,
    store,
)


class Counting:
    """An engine whose answers follow from the request, and which counts what it computes."""

    name = "counting"

    def __init__(self, fingerprint: str = "a" * 16, max_length: int = 50) -> None:
        self.fingerprint = fingerprint
        self.max_length = max_length
        self.computed = 0

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreAnswer]]:
        for index in reversed(range(len(requests))):
            self.computed += 1
            request = requests[index]
            refusal = request.refusal(self.max_length)
            logprobs = tuple(-0.1 * sum(tokens) - 1 / 3 for tokens in request.continuations)
            lengths = tuple(len(tokens) for tokens in request.continuations)
            yield (
                index,
                (
                    ScoreAnswer.failed(refusal)
                    if refusal
                    else ScoreAnswer(logprobs, tuple(length == 1 for length in lengths), lengths)
                ),
            )

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateAnswer]]:
        for index, request in enumerate(requests):
            self.computed += 1
            tokens = tuple(range(request.limit(self.max_length)))
            yield index, GenerateAnswer(tokens, f"wörds {request.seed}\n", "length")


def requests(count: int) -> list[ScoreRequest | GenerateRequest]:
    scored = [ScoreRequest((1, i), ((2, i), (3,))) for i in range(count)]
    written = [GenerateRequest((1, i), Sampling(4, 0.5), seed=i) for i in range(count)]
    mixed: list[ScoreRequest | GenerateRequest] = [*scored, *written]
    random.Random(0).shuffle(mixed)
    return mixed


def test_answers_come_back_in_order_and_only_once(tmp_path: Path) -> None:
    engine, asked = Counting(), requests(20)
    first = answer_all(engine, AnswerStore(tmp_path), asked, quiet=True)
    assert engine.computed == 40
    for request, answer in zip(asked, first, strict=True):
        [(_, expected)] = (
            Counting().score([request])
            if isinstance(request, ScoreRequest)
            else Counting().generate([request])
        )
        assert answer == expected
    assert answer_all(engine, AnswerStore(tmp_path), asked[::-1], quiet=True) == first[::-1]
    assert engine.computed == 40


def test_equal_requests_are_computed_once(tmp_path: Path) -> None:
    engine = Counting()
    greedy = [GenerateRequest((1,), Sampling(3), seed) for seed in range(5)]
    answers = answer_all(engine, AnswerStore(tmp_path), [*greedy, *requests(1), *requests(1)], quiet=True)
    assert engine.computed == 3
    assert len(answers) == 9


def test_another_engine_is_never_served(tmp_path: Path) -> None:
    answers = AnswerStore(tmp_path)
    answer_all(Counting("a" * 16), answers, requests(3), quiet=True)
    other = Counting("b" * 16)
    answer_all(other, answers, requests(3), quiet=True)
    assert other.computed == 6


def test_sampling_and_seed_are_part_of_the_key(tmp_path: Path) -> None:
    engine, answers = Counting(), AnswerStore(tmp_path)
    asked = [
        GenerateRequest((1,), sampling, seed)
        for sampling in (Sampling(3, 0.5), Sampling(3, 0.6), Sampling(4, 0.5), Sampling(3, 0.5, stop=("x",)))
        for seed in (0, 1)
    ]
    answer_all(engine, answers, asked, quiet=True)
    assert engine.computed == 8


def test_a_longer_model_is_asked_again(tmp_path: Path) -> None:
    long = ScoreRequest(tuple(range(60)), ((1,),))
    cut = GenerateRequest(tuple(range(48)), Sampling(10))
    whole = GenerateRequest((1,), Sampling(10))
    short = Counting(max_length=50)
    first = answer_all(short, AnswerStore(tmp_path), [long, cut, whole], quiet=True)
    assert first[0].error is not None
    answer_all(short, AnswerStore(tmp_path), [long, cut, whole], quiet=True)
    assert short.computed == 3
    longer = Counting(max_length=100)
    second = answer_all(longer, AnswerStore(tmp_path), [long, cut, whole], quiet=True)
    assert longer.computed == 2
    assert second[0].error is None
    assert isinstance(second[1], GenerateAnswer)
    assert len(second[1].tokens) == 10


def test_a_torn_line_is_dropped_and_a_broken_one_named(tmp_path: Path) -> None:
    engine = Counting()
    answer_all(engine, AnswerStore(tmp_path), requests(3), quiet=True)
    journal = tmp_path / f"{engine.fingerprint}.score.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-7])
    answer_all(engine, AnswerStore(tmp_path), requests(3), quiet=True)
    assert engine.computed == 7
    assert sorted(journal.read_bytes().splitlines()) == sorted(whole.splitlines())
    journal.write_text('{"key": ["x", "", 0]}\n' + whole.decode())
    with pytest.raises(DataError, match="line 1"):
        answer_all(engine, AnswerStore(tmp_path), requests(3), quiet=True)


def test_an_interrupted_engine_leaves_its_answers(tmp_path: Path) -> None:
    class Dying(Counting):
        def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreAnswer]]:
            for number, pair in enumerate(super().score(requests)):
                if number == 7:
                    raise KeyboardInterrupt
                yield pair

    with pytest.raises(KeyboardInterrupt):
        answer_all(Dying(), AnswerStore(tmp_path), requests(10), quiet=True)
    rest = Counting()
    answer_all(rest, AnswerStore(tmp_path), requests(10), quiet=True)
    assert rest.computed == 20 - 7


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(RunFolderError, match="file"):
        answer_all(Counting(), AnswerStore(blocked), requests(2), quiet=True)


def test_a_full_disk_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Counting()
    answer_all(engine, AnswerStore(tmp_path), requests(2), quiet=True)
    journal = tmp_path / f"{engine.fingerprint}.score.jsonl"
    before = journal.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFolderError, match="No space left"):
        answer_all(engine, AnswerStore(tmp_path), requests(5), quiet=True)
    monkeypatch.undo()
    assert journal.read_bytes() == before
    again = Counting()
    answer_all(again, AnswerStore(tmp_path), requests(5), quiet=True)
    assert again.computed == 6


class Slow(Counting):
    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreAnswer]]:
        for pair in super().score(requests):
            time.sleep(0.001)
            yield pair


def start(folder: Path) -> multiprocessing.process.BaseProcess:
    """A process that answers into `folder`. Forked, so that it works at once; it uses no torch."""
    process = multiprocessing.get_context("fork").Process(target=work, args=(folder,))
    process.start()
    return process


def work(folder: Path) -> None:
    answer_all(Slow(), AnswerStore(folder), requests(60), quiet=True)


def contents(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The distinct rows of each journal."""
    return {
        path.name: sorted(map(json.loads, set(path.read_text().splitlines())), key=str)
        for path in sorted(folder.glob("*.jsonl"))
    }


def test_killed_at_random_points_and_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FLUSH_ANSWERS", 3)
    draw = random.Random(1)
    exits = []
    for _ in range(20):
        process = start(tmp_path / "killed")
        time.sleep(draw.uniform(0.0, 0.03))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        exits.append(process.exitcode)
    assert exits.count(-signal.SIGKILL) > 0
    asked = requests(60)
    answers = answer_all(Counting(), AnswerStore(tmp_path / "killed"), asked, quiet=True)
    undisturbed = answer_all(Counting(), AnswerStore(tmp_path / "whole"), asked, quiet=True)
    assert answers == undisturbed
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_two_processes_on_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FLUSH_ANSWERS", 3)
    pair = [start(tmp_path / "shared") for _ in range(2)]
    for process in pair:
        process.join(60)
        assert process.exitcode == 0
    answer_all(Counting(), AnswerStore(tmp_path / "whole"), requests(60), quiet=True)
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")

"""Responses on disk: never computed twice, never lost, never shared across fingerprints."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from evalsuite.foundation import DataError, RunFolderError
from evalsuite.models.inference import (
    GenerateRequest,
    GenerateResponse,
    ResponseCache,
    SamplingParams,
    ScoreRequest,
    ScoreResponse,
    response_cache,
    run_requests,
)


class Counting:
    """An engine with deterministic responses that counts the requests it runs."""

    name = "counting"
    weights_id = "0" * 16
    versions: Mapping[str, str] = {}

    def __init__(self, fingerprint: str = "a" * 16, max_length: int = 50) -> None:
        self.fingerprint = fingerprint
        self.max_length = max_length
        self.computed = 0

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        for index in reversed(range(len(requests))):
            self.computed += 1
            request = requests[index]
            refusal = request.validation_error(self.max_length)
            logprobs = tuple(-0.1 * sum(tokens) - 1 / 3 for tokens in request.continuations)
            lengths = tuple(len(tokens) for tokens in request.continuations)
            yield (
                index,
                (
                    ScoreResponse.from_error(refusal)
                    if refusal
                    else ScoreResponse(logprobs, tuple(length == 1 for length in lengths), lengths)
                ),
            )

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        for index, request in enumerate(requests):
            self.computed += 1
            tokens = tuple(range(request.token_limit(self.max_length)))
            yield index, GenerateResponse(tokens, f"wörds {request.seed}\n", "length")

    def close(self) -> None:
        """Nothing to release."""


def requests(count: int) -> list[ScoreRequest | GenerateRequest]:
    scored = [ScoreRequest((1, i), ((2, i), (3,))) for i in range(count)]
    generated = [GenerateRequest((1, i), SamplingParams(4, 0.5), seed=i) for i in range(count)]
    mixed: list[ScoreRequest | GenerateRequest] = [*scored, *generated]
    random.Random(0).shuffle(mixed)
    return mixed


def test_responses_are_in_request_order_and_computed_once(tmp_path: Path) -> None:
    engine, batch = Counting(), requests(20)
    first = run_requests(engine, ResponseCache(tmp_path), batch, quiet=True)
    assert engine.computed == 40
    for request, response in zip(batch, first, strict=True):
        [(_, expected)] = (
            Counting().score([request])
            if isinstance(request, ScoreRequest)
            else Counting().generate([request])
        )
        assert response == expected
    assert run_requests(engine, ResponseCache(tmp_path), batch[::-1], quiet=True) == first[::-1]
    assert engine.computed == 40


def test_equal_requests_are_computed_once(tmp_path: Path) -> None:
    engine = Counting()
    greedy = [GenerateRequest((1,), SamplingParams(3), seed) for seed in range(5)]
    responses = run_requests(
        engine, ResponseCache(tmp_path), [*greedy, *requests(1), *requests(1)], quiet=True
    )
    assert engine.computed == 3
    assert len(responses) == 9


def test_another_fingerprint_is_never_served(tmp_path: Path) -> None:
    responses = ResponseCache(tmp_path)
    run_requests(Counting("a" * 16), responses, requests(3), quiet=True)
    other = Counting("b" * 16)
    run_requests(other, responses, requests(3), quiet=True)
    assert other.computed == 6


def test_sampling_and_seed_are_part_of_the_key(tmp_path: Path) -> None:
    engine, responses = Counting(), ResponseCache(tmp_path)
    batch = [
        GenerateRequest((1,), sampling, seed)
        for sampling in (
            SamplingParams(3, 0.5),
            SamplingParams(3, 0.6),
            SamplingParams(4, 0.5),
            SamplingParams(3, 0.5, stop=("x",)),
        )
        for seed in (0, 1)
    ]
    run_requests(engine, responses, batch, quiet=True)
    assert engine.computed == 8


def test_rejected_and_truncated_requests_rerun_with_a_longer_model(tmp_path: Path) -> None:
    long = ScoreRequest(tuple(range(60)), ((1,),))
    cut = GenerateRequest(tuple(range(48)), SamplingParams(10))
    whole = GenerateRequest((1,), SamplingParams(10))
    short = Counting(max_length=50)
    first = run_requests(short, ResponseCache(tmp_path), [long, cut, whole], quiet=True)
    assert first[0].error is not None
    run_requests(short, ResponseCache(tmp_path), [long, cut, whole], quiet=True)
    assert short.computed == 3
    longer = Counting(max_length=100)
    second = run_requests(longer, ResponseCache(tmp_path), [long, cut, whole], quiet=True)
    assert longer.computed == 2
    assert second[0].error is None
    assert isinstance(second[1], GenerateResponse)
    assert len(second[1].tokens) == 10


def test_an_incomplete_line_is_dropped_and_an_invalid_one_reported(tmp_path: Path) -> None:
    engine = Counting()
    run_requests(engine, ResponseCache(tmp_path), requests(3), quiet=True)
    log = tmp_path / f"{engine.fingerprint}.score.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-7])
    run_requests(engine, ResponseCache(tmp_path), requests(3), quiet=True)
    assert engine.computed == 7
    assert sorted(log.read_bytes().splitlines()) == sorted(whole.splitlines())
    log.write_text('{"key": ["x", "", 0]}\n' + whole.decode())
    with pytest.raises(DataError, match="line 1"):
        run_requests(engine, ResponseCache(tmp_path), requests(3), quiet=True)


def test_responses_survive_an_interrupt(tmp_path: Path) -> None:
    class Dying(Counting):
        def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
            for number, pair in enumerate(super().score(requests)):
                if number == 7:
                    raise KeyboardInterrupt
                yield pair

    with pytest.raises(KeyboardInterrupt):
        run_requests(Dying(), ResponseCache(tmp_path), requests(10), quiet=True)
    rest = Counting()
    run_requests(rest, ResponseCache(tmp_path), requests(10), quiet=True)
    assert rest.computed == 20 - 7


def test_a_folder_that_is_not_writable(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(RunFolderError, match="file"):
        run_requests(Counting(), ResponseCache(blocked), requests(2), quiet=True)


def test_a_full_disk_leaves_complete_lines_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Counting()
    run_requests(engine, ResponseCache(tmp_path), requests(2), quiet=True)
    log = tmp_path / f"{engine.fingerprint}.score.jsonl"
    before = log.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunFolderError, match="No space left"):
        run_requests(engine, ResponseCache(tmp_path), requests(5), quiet=True)
    monkeypatch.undo()
    assert log.read_bytes() == before
    again = Counting()
    run_requests(again, ResponseCache(tmp_path), requests(5), quiet=True)
    assert again.computed == 6


class Slow(Counting):
    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        for pair in super().score(requests):
            time.sleep(0.001)
            yield pair


def start(folder: Path) -> multiprocessing.process.BaseProcess:
    """Start a process that fills the cache in `folder`. Forked for a fast start; it does not use torch."""
    process = multiprocessing.get_context("fork").Process(target=work, args=(folder,))
    process.start()
    return process


def work(folder: Path) -> None:
    run_requests(Slow(), ResponseCache(folder), requests(60), quiet=True)


def contents(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The distinct rows of each log."""
    return {
        path.name: sorted(map(json.loads, set(path.read_text().splitlines())), key=str)
        for path in sorted(folder.glob("*.jsonl"))
    }


def test_resume_after_kills_at_random_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_cache, "FLUSH_RESPONSES", 3)
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
    batch = requests(60)
    responses = run_requests(Counting(), ResponseCache(tmp_path / "killed"), batch, quiet=True)
    uninterrupted = run_requests(Counting(), ResponseCache(tmp_path / "whole"), batch, quiet=True)
    assert responses == uninterrupted
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_two_processes_on_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_cache, "FLUSH_RESPONSES", 3)
    pair = [start(tmp_path / "shared") for _ in range(2)]
    for process in pair:
        process.join(60)
        assert process.exitcode == 0
    run_requests(Counting(), ResponseCache(tmp_path / "whole"), requests(60), quiet=True)
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")

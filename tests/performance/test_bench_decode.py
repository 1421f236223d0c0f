"""The decoding benchmark measures what it says; rates themselves are not tested."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalsuite.foundation import EvalsuiteError
from evalsuite.models.inference import GenerateRequest, GenerateResponse
from tests.performance import bench_decode


class Clocked:
    """Takes a second for each prefill and 0.01 s a token; the first sequence ends after 40 tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(bench_decode.time, "perf_counter", lambda: self.now)
        self.prompts: list[tuple[int, ...]] = []

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        for index, request in enumerate(requests):
            self.prompts.append(request.prompt)
            limit = request.sampling.max_new_tokens
            yield index, GenerateResponse((1,) * (min(limit, 40) if index == 0 else limit), "", "length")
        self.now += 1 + 0.01 * limit


def test_prefill_is_left_out_and_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = Clocked(monkeypatch)
    row = bench_decode.steady_rate(engine, 100, context=5, batch=3, first=20, last=120, repeats=2)
    assert row["tokens_per_second"] == pytest.approx((40 + 120 + 120 - 60) / 1.0)
    assert (row["short_seconds"], row["long_seconds"], row["ended_early"]) == (1.2, 2.2, 1)
    assert len(set(engine.prompts)) == len(engine.prompts) == 18
    assert {len(prompt) for prompt in engine.prompts} == {5}


def test_a_request_that_fails_is_an_error() -> None:
    class Broken:
        def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
            yield 0, GenerateResponse.from_error("out of memory")

    engine: Any = Broken()
    with pytest.raises(EvalsuiteError, match="out of memory"):
        bench_decode.generate(engine, [(2, 3)], 4)


def test_a_row_is_appended_for_each_measurement(tmp_path: Path) -> None:
    out = tmp_path / "steady.jsonl"
    sizes = ["--context=8", "--batch=2", "--first=2", "--last=4", "--repeats=1"]
    for label in ("first", "second"):
        placed = ["--device=cpu", "--dtype=float32", f"--label={label}", f"--out={out}"]
        bench_decode.main(["pocket", *placed, *sizes])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["label"] for row in rows] == ["first", "second"]
    assert all(row["batch"] == 2 and row["long_seconds"] > 0 for row in rows)

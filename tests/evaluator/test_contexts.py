"""Contexts beyond what models read: refused before their documents are made, or counted as errors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.evaluator import evaluate
from evalsuite.foundation import ConfigError, read_jsonl
from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest
from evalsuite.reports.run_folder import read_plan

NAME = "pocket_niah_single_1"


def suite(folder: Path, contexts: list[int]) -> Path:
    path = folder / "long.yaml"
    path.write_text(
        "name: long\ntitle: Long\nlimit: 2\nbenchmarks:\n"
        f"  - {{benchmark: {NAME}, contexts: {contexts}, protocols: [generation]}}\n  - pocket_facts\n"
    )
    return path


def records(run: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((run / "records").glob("*.jsonl")) for row in read_jsonl(path)]


def test_one_that_nobody_reads_is_refused_or_left_out_by_name(crew: Any, tmp_path: Path) -> None:
    run, both = tmp_path / "run", suite(tmp_path, [128, 4096])
    for dry_run in (False, True):
        with pytest.raises(
            ConfigError,
            match=rf"long.yaml: benchmarks: {NAME}: 'contexts' = 4096: a reads at most 2,048 .*-missing",
        ):
            evaluate(both, ["a"], run, dry_run=dry_run, quiet=True)
    assert not (run / "documents").exists()
    for _ in range(2):  # The second call resumes, and still knows.
        summary = evaluate(both, ["a", "b"], run, skip_missing=True, quiet=True)
        assert list(summary.left_out) == [f"{NAME}@4096"]
        assert f"{NAME}@4096 is left out: of all that are asked a reads most, 2,048 tokens" in str(summary)
        assert {row["context"] for row in records(run) if row["benchmark"] == NAME} == {128}
        assert read_plan(run).benchmarks[0].contexts == (128,)
    other = tmp_path / "other"
    evaluate(suite(tmp_path, [4096]), ["a"], other, skip_missing=True, quiet=True)
    assert {row["benchmark"] for row in records(other)} == {"pocket_facts"}


def test_one_that_another_checkpoint_reads_is_an_error_and_counted(
    crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {"t": 2048, "a": 512}
    engines: Callable[..., Any] = crew.engine_maker

    def describe(checkpoints: Sequence[str], teacher: str | None, **_: object) -> list[Any]:
        return [replace(each, max_length=reads[each.label]) for each in crew.describe(checkpoints, teacher)]

    def engine_maker(*_: object, **__: object) -> Callable[[str, str], Any]:
        def make(path: str, label: str) -> Any:
            engine = engines()(path, label)

            def generate(requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateAnswer]]:
                for number, request in enumerate(requests):
                    refusal = request.refusal(reads[label])
                    answer = GenerateAnswer((1,), " x", "stop")
                    yield number, GenerateAnswer.failed(refusal) if refusal else answer

            engine.generate, engine.max_length = generate, reads[label]
            return engine

        return make

    monkeypatch.setattr("evalsuite.evaluator.checkpoints.describe", describe)
    monkeypatch.setattr("evalsuite.evaluator.answer.engine_maker", engine_maker)
    run, both = tmp_path / "run", suite(tmp_path, [128, 1024])
    told = str(evaluate(both, ["a"], run, teacher="t", phases=("render", "answer"), quiet=True))
    assert "a: 2 answers are errors, such as: refused: the prompt has" in told
    assert "t: " not in told
    summary = evaluate(both, [], run, phases=("judge",), quiet=True)
    assert {label: count for label, (count, _) in summary.errors.items()} == {"a": 2}
    assert "a: 2 documents could not be answered and enter no score" in str(summary)
    failed = [row for row in records(run) if row["outcome"] == "error"]
    assert {(row["checkpoint"], row["context"]) for row in failed} == {("a", 1024)}

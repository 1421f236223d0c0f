"""Contexts beyond what models read: refused before their documents are made, or counted as errors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import estimate_run, evaluate
from evalsuite.foundation import ConfigError
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse
from evalsuite.reports.records.run_folder import read_plan
from tests.reports.score_edits import rows_by_cell

NAME = "pocket_niah_single_1"


def suite(folder: Path, contexts: list[int]) -> Path:
    path = folder / "long.yaml"
    path.write_text(
        "name: long\ntitle: Long\nlimit: 2\nbenchmarks:\n"
        f"  - {{benchmark: {NAME}, contexts: {contexts}, protocols: [generation]}}\n  - pocket_facts\n"
    )
    return path


def records(run: Path) -> list[dict[str, Any]]:
    return [row for rows in rows_by_cell(run).values() for row in rows]


def test_context_beyond_all_checkpoints_is_refused_or_left_out(crew: Any, tmp_path: Path) -> None:
    run, both = tmp_path / "run", suite(tmp_path, [128, 4096])
    for call in (evaluate, estimate_run):
        with pytest.raises(
            ConfigError,
            match=rf"long.yaml: benchmarks: {NAME}: 'contexts' = 4096: a supports at most 2,048 .*--strict",
        ):
            call(RunConfig(suite=both, checkpoints=["a"], out=run, strict=True, quiet=True))
    assert not (run / "documents").exists()
    for _ in range(2):  # The second call resumes, and still knows.
        summary = evaluate(RunConfig(suite=both, checkpoints=["a", "b"], out=run, quiet=True))
        assert list(summary.left_out) == [f"{NAME}@4096"]
        assert f"{NAME}@4096 is left out: of all checkpoints a supports most, 2,048 tokens" in str(summary)
        assert {row["context"] for row in records(run) if row["benchmark"] == NAME} == {128}
        assert read_plan(run).benchmarks[0].contexts == (128,)
    other = tmp_path / "other"
    evaluate(RunConfig(suite=suite(tmp_path, [4096]), checkpoints=["a"], out=other, quiet=True))
    assert {row["benchmark"] for row in records(other)} == {"pocket_facts"}


def test_context_beyond_one_checkpoint_is_an_error(
    crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {"t": 2048, "a": 512}
    engines: Callable[..., Any] = crew.engine_factory

    def describe_checkpoints(checkpoints: Sequence[str], teacher: str | None, **_: object) -> list[Any]:
        return [
            replace(each, max_length=reads[each.label])
            for each in crew.describe_checkpoints(checkpoints, teacher)
        ]

    def engine_factory(*_: object, **__: object) -> Callable[[str, str], Any]:
        def make(path: str, label: str) -> Any:
            engine = engines()(path, label)

            def generate(requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
                for number, request in enumerate(requests):
                    refusal = request.validation_error(reads[label])
                    answer = GenerateResponse((1,), " x", "stop")
                    yield number, GenerateResponse.from_error(refusal) if refusal else answer

            engine.generate, engine.max_length = generate, reads[label]
            return engine

        return make

    monkeypatch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", describe_checkpoints)
    monkeypatch.setattr("evalsuite.evaluation.infer.engine_factory", engine_factory)
    run, both = tmp_path / "run", suite(tmp_path, [128, 1024])
    told = str(
        evaluate(
            RunConfig(
                suite=both, checkpoints=["a"], out=run, teacher="t", phases=("build", "infer"), quiet=True
            )
        )
    )
    assert "a: 2 responses are errors, e.g. invalid request: the prompt has" in told
    assert "\nt: " not in told
    summary = evaluate(RunConfig(suite=both, out=run, phases=("score",), quiet=True))
    assert {label: count for label, (count, _) in summary.errors.items()} == {"a": 2}
    assert "a: 2 documents failed, e.g." in str(summary)
    failed = [row for row in records(run) if row["outcome"] == "error"]
    assert {(row["checkpoint"], row["context"]) for row in failed} == {("a", 1024)}

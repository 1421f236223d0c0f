"""Contexts beyond what models read: left out by name, for all checkpoints or for one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation import documents, estimate_run, evaluate
from evalsuite.foundation import ConfigError, DataError, read_json, write_json
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse
from evalsuite.reports.run import manifest_path, read_manifest
from tests.evaluation.runs import evaluate_quietly
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
        summary = evaluate_quietly(suite=both, checkpoints=["a", "b"], out=run)
        assert list(summary.left_out) == [f"{NAME}@4096"]
        assert f"{NAME}@4096 is left out: of all checkpoints a supports most, 2,048 tokens" in str(summary)
        assert {row["context"] for row in records(run) if row["benchmark"] == NAME} == {128}
        assert read_manifest(run).benchmarks[0].contexts == (128,)
    other = tmp_path / "other"
    evaluate_quietly(suite=suite(tmp_path, [4096]), checkpoints=["a"], out=other)
    assert {row["benchmark"] for row in records(other)} == {"pocket_facts"}


@pytest.mark.parametrize("missing", [128, 256])
def test_a_benchmark_without_data_for_one_context_is_left_out_whole(
    crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    draw = documents.documents

    def fail(benchmark: Any, *, context: int | None, **options: Any) -> Any:
        if context == missing:
            raise DataError(f"nothing of {context} tokens")
        return draw(benchmark, context=context, **options)

    monkeypatch.setattr(documents, "documents", fail)
    run, both = tmp_path / "run", suite(tmp_path, [128, 256])
    with pytest.raises(DataError, match=f"nothing of {missing} tokens"):
        evaluate_quietly(suite=both, checkpoints=["a"], out=run)
    summary = evaluate_quietly(suite=both, checkpoints=["a"], out=run, skip_missing=True)
    assert summary.left_out == {NAME: f"nothing of {missing} tokens"}
    assert {row["benchmark"] for row in records(run)} == {"pocket_facts"}


def limited(
    crew: Any, monkeypatch: pytest.MonkeyPatch, reads: dict[str, int]
) -> Callable[[], list[tuple[str, int]]]:
    """Give each checkpoint its positions; return who got requests for texts that it cannot read."""
    engines: Callable[..., Any] = crew.engine_factory
    refused: list[tuple[str, int]] = []

    def describe_checkpoints(checkpoints: Sequence[str], teacher: str | None, **_: object) -> list[Any]:
        return [
            replace(each, positions=reads[each.label])
            for each in crew.describe_checkpoints(checkpoints, teacher)
        ]

    def engine_factory(*_: object, **__: object) -> Callable[[str, str], Any]:
        def make(path: str, label: str) -> Any:
            engine = engines()(path, label)

            def generate(requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
                for number, request in enumerate(requests):
                    if refusal := request.validation_error(reads[label]):
                        refused.append((label, len(request.prompt)))
                        yield number, GenerateResponse.from_error(refusal)
                    else:
                        yield number, GenerateResponse((1,), " x", "stop")

            engine.generate, engine.max_length = generate, reads[label]
            return engine

        return make

    monkeypatch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", describe_checkpoints)
    monkeypatch.setattr("evalsuite.evaluation.inference.engines.engine_factory", engine_factory)
    return lambda: refused


def test_context_beyond_one_checkpoint_is_left_out_for_it(
    crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = limited(crew, monkeypatch, {"t": 2048, "a": 512})
    run, both = tmp_path / "run", suite(tmp_path, [128, 1024])
    requested = RunConfig(suite=both, checkpoints=["a"], out=run, teacher="t", quiet=True)
    why = f"{NAME}@1024 is not read by a: it supports at most 512 tokens"
    estimate = estimate_run(requested)
    assert why in str(estimate)
    assert estimate.unread_requests == 2
    for _ in range(2):  # The second call resumes, and still knows.
        summary = evaluate(requested)
        assert why in str(summary)
        assert not summary.missing
        assert not summary.errors
        assert not summary.failed
    assert refused() == []
    assert read_manifest(run).unread == {"a": {f"{NAME}@1024": "supports at most 512 tokens"}}
    found = [row for row in records(run) if row["benchmark"] == NAME]
    assert {(row["checkpoint"], row["context"]) for row in found} == {("t", 128), ("t", 1024), ("a", 128)}
    plan = read_manifest(run)
    assert {each.label: each.positions for each in plan.checkpoints} == {"t": 2048, "a": 512}
    assert not plan.limit(plan.checkpoints[1]).reads(1024)
    with pytest.raises(
        ConfigError, match=rf"{NAME}: 'contexts' = 1024: a supports at most 512 tokens.*--strict"
    ):
        evaluate(replace(requested, out=tmp_path / "other", strict=True))


def test_context_that_an_earlier_version_counted_as_an_error(
    crew: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest without positions has error rows; building again leaves them out, and their file goes."""
    refused = limited(crew, monkeypatch, {"t": 2048, "a": 512})
    run = tmp_path / "run"
    requested = RunConfig(suite=suite(tmp_path, [1024]), checkpoints=["a"], out=run, teacher="t", quiet=True)
    evaluate(replace(requested, phases=("build",)))
    manifest = read_json(manifest_path(run))
    for checkpoint in manifest["checkpoints"]:
        del checkpoint["positions"]
    write_json(manifest_path(run), manifest)
    old = RunConfig(out=run, phases=("infer", "score"), quiet=True)
    assert {label: count for label, (count, _) in evaluate(old).errors.items()} == {"a": 2}
    assert [label for label, _ in refused()] == ["a", "a"]
    assert not evaluate(requested).errors
    assert {row["checkpoint"] for row in records(run) if row["benchmark"] == NAME} == {"t"}

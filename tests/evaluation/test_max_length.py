"""`--max-length`: contexts beyond the positions that configs state, marked wherever their scores appear."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedTokenizerFast

from evalsuite.config import RunConfig
from evalsuite.evaluation import estimate_run, evaluate
from evalsuite.foundation import ConfigError, RunFolderError, read_json, write_json
from evalsuite.models import build_student
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell

NAME = "pocket_niah_single_1"
POSITIONS = 160


def suite(folder: Path, contexts: list[int]) -> Path:
    path = folder / "long.yaml"
    path.write_text(
        "name: long\ntitle: Long\nlimit: 1\nbenchmarks:\n"
        f"  - {{benchmark: {NAME}, contexts: {contexts}, protocols: [generation]}}\n  - pocket_facts\n"
    )
    return path


@pytest.fixture(scope="module")
def teacher(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny` with 160 positions."""
    folder = tmp_path_factory.mktemp("short") / "teacher"
    shutil.copytree(tiny, folder)
    write_json(
        folder / "config.json", read_json(folder / "config.json") | {"max_position_embeddings": POSITIONS}
    )
    return folder


@pytest.fixture(scope="module")
def recurrent(
    teacher: Path, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A student without softmax layers and without rotary embedding."""
    folder = tmp_path_factory.mktemp("recurrent") / "student"
    build_student(LlamaForCausalLM.from_pretrained(teacher), ["gated_deltanet"] * 2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(teacher: Path, recurrent: Path, out: Path, contexts: list[int], **options: Any) -> RunConfig:
    return RunConfig(
        suite=suite(out.parent, contexts),
        checkpoints=[str(recurrent)],
        teacher=str(teacher),
        out=out,
        quiet=True,
        **options,
    )


def rows(run: Path) -> list[dict[str, Any]]:
    return [row for found in rows_by_cell(run).values() for row in found]


def test_scores_beyond_the_stated_positions_are_marked(
    teacher: Path, recurrent: Path, tmp_path: Path
) -> None:
    """Four times the 160 positions; the same run without the option leaves the context out."""
    far, near = tmp_path / "far", tmp_path / "near"
    extended = config(teacher, recurrent, far, [128, 640], max_length=640)
    summary = evaluate(extended)
    assert not summary.errors
    assert not summary.left_out
    assert not summary.missing
    evaluate(config(teacher, recurrent, near, [128, 640]))

    marked = {(row["checkpoint"], row["benchmark"], row["context"]): row for row in rows(far)}
    assert {key for key, row in marked.items() if row["out_of_distribution"]} == {
        (label, NAME, 640) for label in (teacher.name, "student")
    }
    assert {row["context"] for row in rows(near)} == {None, 128}
    assert not any(row["out_of_distribution"] for row in rows(near))
    # In distribution the scores are those of a run without the option.
    plain = {(row["checkpoint"], row["benchmark"], row["context"]): row["values"] for row in rows(near)}
    assert plain == {key: row["values"] for key, row in marked.items() if key[2] != 640}
    columns = {path.name for path in (near / "scores").glob("*.parquet") if _has_mark(path)}
    assert not columns

    plan = read_manifest(far)
    assert plan.max_length == 640
    assert {each.positions for each in plan.checkpoints} == {POSITIONS}
    assert "max_length" not in read_json(near / "run.json")
    before, after = (read_manifest(run).engines for run in (near, far))
    assert before.keys() == after.keys()
    for weights_id, engine in before.items():
        assert "max_length" not in engine.versions
        assert after[weights_id].versions == engine.versions | {"max_length": "640"}
        assert after[weights_id].fingerprint != engine.fingerprint

    assert not any(evaluate(extended).computed.values())  # The same command resumes.
    with pytest.raises(RunFolderError, match=r"another configuration.*\(max_length: 640 there, None here\)"):
        evaluate(config(teacher, recurrent, far, [128, 640]))


def _has_mark(path: Path) -> bool:
    return "out_of_distribution" in pq.read_schema(path).names


def test_estimate_counts_the_contexts_that_are_read(
    teacher: Path, recurrent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalsuite.evaluation.estimate._time", lambda *_: "")  # Timing layers is slow.
    estimate = estimate_run(config(teacher, recurrent, tmp_path / "run", [128, 640], max_length=640))
    assert not estimate.left_out
    assert {row[2] for row in estimate.rows if row[0] == NAME} == {2}
    # What a gate can plan with before the run: the counts of its manifest.
    assert estimate.manifest is not None
    planned = {each.name: each.protocols["generation"].total for each in estimate.manifest.benchmarks}
    assert planned == {row[0]: row[2] for row in estimate.rows if row[1] == "generation"}
    assert estimate_run(config(teacher, recurrent, tmp_path / "run", [128, 640])).left_out.keys() == {
        f"{NAME}@640"
    }


def test_learned_positions_are_refused_before_anything_is_written(
    recurrent: Path, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    learned = tmp_path / "learned"
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=POSITIONS, n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(learned)
    tokenizer.save_pretrained(learned)
    requested = config(learned, recurrent, tmp_path / "run", [128, 640], max_length=640)
    why = (
        r"\(--max-length\) = 640: learned cannot read that far: its positions end at 160: GPT2Config has "
        r"no rotary embedding.*run of its own"
    )
    for call in (estimate_run, evaluate):
        with pytest.raises(ConfigError, match=why):
            call(requested)
    assert not (tmp_path / "run" / "requests").exists()


def test_engine_that_ends_at_the_stated_positions_is_refused(
    teacher: Path, recurrent: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    why = r"\(--max-length\) = 640: engine vllm reads no more positions"
    for call in (estimate_run, evaluate):
        with pytest.raises(ConfigError, match=why):
            call(config(teacher, recurrent, run, [128], max_length=640, engine="vllm"))
    assert not (run / "requests").exists()
    evaluate(config(teacher, recurrent, run, [640], max_length=640, phases=("build",)))
    with pytest.raises(ConfigError, match=why):  # The infer phase alone knows it from the run.
        evaluate_quietly(out=run, phases=("infer",), engine="vllm")


def test_max_length_that_extends_nothing_is_refused(teacher: Path, recurrent: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"= 160: it only extends .* reads 160 positions already"):
        evaluate(config(teacher, recurrent, tmp_path / "run", [128], max_length=160))
    with pytest.raises(ConfigError, match="'max_length' = 0: must be at least 1"):
        config(teacher, recurrent, tmp_path / "run", [640], max_length=0)
    with pytest.raises(ConfigError, match=r"'max_length' \(--max-length\) has no effect without the build"):
        RunConfig(out=tmp_path, phases=("infer",), max_length=640)


def test_checkpoint_that_joins_late_reads_as_far(teacher: Path, recurrent: Path, tmp_path: Path) -> None:
    """A GPU host registers a student of which the machine that built the requests knows nothing."""
    run, late = tmp_path / "run", tmp_path / "late"
    shutil.copytree(recurrent, late)
    (late / "generation_config.json").write_text('{"eos_token_id": 5}')  # Other weights, as far as ids go.
    evaluate(config(teacher, recurrent, run, [640], max_length=640, phases=("build",)))
    infer = RunConfig(out=run, checkpoints=[str(late)], phases=("infer",), quiet=True)
    evaluate(infer)
    evaluate_quietly(out=run, phases=("score",))
    found = [row for row in rows(run) if row["checkpoint"] == "late" and row["context"] == 640]
    assert [row["out_of_distribution"] for row in found] == [True]
    assert {each.label: each.positions for each in read_manifest(run).checkpoints}["late"] == POSITIONS

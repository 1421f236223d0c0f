"""Distances of a run on the pocket teacher: a student that is its 3-bit rounding lies on that mark."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from evalsuite.cli.entry import main
from evalsuite.evaluation.distances.measure import measure_distances
from evalsuite.evaluation.distances.passages import answer_parts, parse_texts, text_parts
from evalsuite.foundation import ConfigError, DataError, RunFolderError
from evalsuite.models import load_checkpoint
from evalsuite.models.diagnostics.quantization import BITS, quantized
from evalsuite.reports.measures.distances import distance_of, distances
from evalsuite.reports.records.distances import DISTANCE_FILE, FILE
from evalsuite.reports.report import build_report
from tests.evaluation.runs import evaluate_quietly

SUITE = """\
name: small
title: Two benchmarks of the pocket world
benchmarks:
  - {benchmark: pocket_facts, protocols: [loglikelihood]}
  - {benchmark: pocket_cloze, protocols: [loglikelihood]}
"""


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is the pocket teacher rounded to 3 bits."""
    pocket = load_checkpoint("pocket", dtype="float32")
    folder = tmp_path_factory.mktemp("student") / "rounded"
    quantized(pocket.model, 3).save_pretrained(folder)
    pocket.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, student: Path) -> Path:
    folder = tmp_path_factory.mktemp("run")
    suite = folder / "small.yaml"
    suite.write_text(SUITE)
    out = folder / "run"
    evaluate_quietly(suite=suite, checkpoints=[str(student)], teacher="pocket", limit=12, out=out)
    return out


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "world.jsonl"
    words = "the color of the red ball is red and the color of the blue box is blue . "
    path.write_text("".join(json.dumps({"text": words * n}) + "\n" for n in (2, 3, 5, 7)))
    return path


@pytest.mark.long
def test_a_rounded_student_lies_on_its_mark_of_the_yardstick(run: Path, student: Path, text: Path) -> None:
    measured = measure_distances(
        run, [str(student)], "pocket", texts=[f"world={text}"], yardstick=True, device="cpu", quiet=True
    )
    frame = DISTANCE_FILE.read(run / FILE)
    assert len(frame) == len(measured)
    assert set(frame["text"]) == {"answers", "world"}
    assert set(frame[frame["text"] == "answers"]["source"]) == {"pocket_facts", "pocket_cloze"}
    assert set(frame["bits"].dropna().astype(int)) == set(BITS)
    report = build_report([run])
    mine = distance_of(report, 1)
    mark = next(r for r in report.of(distances) if (r.bits, r.text, r.kind) == (3, "answers", "all"))
    assert mine.kl.point == pytest.approx(mark.kl.point, rel=1e-4, abs=1e-7)
    assert mine.agreement.point == mark.agreement.point
    assert mine.equivalent_bits.point == pytest.approx(3, abs=0.01)
    assert (mine.documents, mine.tokens) == (mark.documents, mark.tokens)
    kl = {
        r.bits: r.kl.point for r in report.of(distances) if (r.text, r.kind) == ("answers", "all") and r.bits
    }
    assert kl[2] > kl[3] > kl[4]
    classes = {r.group for r in report.of(distances) if (r.text, r.kind) == ("world", "token_class")}
    assert "copied" in classes


def test_answers_are_the_right_choices_of_the_run(run: Path) -> None:
    pocket = load_checkpoint("pocket", dtype="float32")
    parts = {part.source: part for part in answer_parts(run, pocket.tokenizer, pocket.weights_id)}
    assert {name: len(part.passages) for name, part in parts.items()} == {
        "pocket_facts": 12,
        "pocket_cloze": 12,
    }
    rows = {
        (row["benchmark"], row["doc_id"]): row["detail"]
        for path in (run / "scores").glob("*.loglikelihood.*.parquet")
        for row in _rows(path, pocket.weights_id)
    }
    for name, part in parts.items():
        for passage in part.passages:
            detail = rows[name, passage.doc_id]
            assert len(passage.tokens) - passage.first == detail["tokens"][detail["gold"]]


def _rows(path: Path, weights_id: str) -> list[dict]:
    from evalsuite.reports.records.score_files import read_rows

    return [row for row in read_rows(path).values() if row["weights_id"] == weights_id]


def test_the_log_likelihood_of_answers_is_that_of_the_run(run: Path, student: Path) -> None:
    """The teacher's negative log-likelihood at the answers is what the engine scored."""
    frame = measure_distances(run, [str(student)], "pocket", device="cpu", quiet=True)
    pocket = load_checkpoint("pocket", dtype="float32")
    scored = {
        row["doc_id"]: row["detail"]["logprobs"][row["detail"]["gold"]]
        for path in (run / "scores").glob("pocket_cloze.loglikelihood.*.parquet")
        for row in _rows(path, pocket.weights_id)
    }
    part = frame[(frame["source"] == "pocket_cloze") & (frame["text"] == "answers")]
    assert len(part) == 12
    for doc_id, nll in zip(part["doc_id"], part["teacher_nll"], strict=True):
        assert nll == pytest.approx(-scored[doc_id], abs=1e-3)


def test_the_command_prints_and_writes_the_distances(
    run: Path, student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / FILE).unlink(missing_ok=True)
    assert main(["distance", str(student), "--teacher", "pocket", "--out", str(run), "--quiet"]) == 0
    printed = capsys.readouterr().out
    frame = DISTANCE_FILE.read(run / FILE)
    kl = frame["kl"].sum() / frame["tokens"].sum()
    weights_id = frame["weights_id"].iloc[0]
    assert f"answers: {weights_id}: KL {kl:.4f} nats per token" in printed
    assert main(["distance", "--teacher", "pocket", "--out", str(run), "--quiet"]) == 64


def test_texts_have_classes_and_positions(text: Path) -> None:
    pocket = load_checkpoint("pocket", dtype="float32")
    vocabulary = pocket.model.get_input_embeddings().weight.shape[0]
    (part,) = text_parts({"world": text}, pocket.tokenizer, vocabulary, 64)
    assert {place for _, place in part.groups} == {"0-63"}
    assert max(len(passage.tokens) for passage in part.passages) <= 64
    (longer,) = text_parts({"world": text}, pocket.tokenizer, vocabulary, 1000)
    assert [place for name, place in longer.groups if name == "copied"] == ["0-511", "512-999"]
    copied = [part.groups[g][0] for passage in part.passages for g in passage.groups].count("copied")
    assert copied > 20


def test_bad_input_is_refused(run: Path, student: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to measure"):
        measure_distances(run, [], "pocket", quiet=True)
    with pytest.raises(ConfigError, match="two texts are named 'world'"):
        parse_texts([str(text), "world=other.txt"])
    with pytest.raises(ConfigError, match="cannot be named 'answers'"):
        measure_distances(run, [str(student)], "pocket", texts=[f"answers={text}"], device="cpu", quiet=True)
    with pytest.raises(DataError, match="no such file"):
        measure_distances(run, [str(student)], "pocket", texts=["x=nowhere.txt"], device="cpu", quiet=True)
    (tmp_path / "bad.jsonl").write_text('{"txt": "a"}\n')
    with pytest.raises(DataError, match="line 1: 'text' = None"):
        measure_distances(
            run, [str(student)], "pocket", texts=[str(tmp_path / "bad.jsonl")], device="cpu", quiet=True
        )
    with pytest.raises(RunFolderError, match="not a run folder"):
        measure_distances(tmp_path, [str(student)], "pocket", device="cpu", quiet=True)


def test_a_student_of_another_family_needs_the_same_tokens_only(run: Path, tmp_path: Path) -> None:
    pocket = load_checkpoint("pocket", dtype="float32")
    config = AutoConfig.for_model(
        "mamba2", vocab_size=pocket.model.config.vocab_size, hidden_size=32, num_hidden_layers=1,
        state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8,
    )  # fmt: skip
    folder = tmp_path / "mamba2"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = pocket.tokenizer
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(folder)
    frame = measure_distances(run, [str(folder)], "pocket", device="cpu", quiet=True)
    assert (frame["kl"] > 0).all()
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    words = backend["model"]["vocab"]
    first, second = list(words)[-2:]
    words[first], words[second] = words[second], words[first]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(backend))
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigError, match="mamba2: its tokenizer splits texts otherwise"):
        measure_distances(run, [str(folder)], "pocket", device="cpu", quiet=True)

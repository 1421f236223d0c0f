"""`evalsuite probe` on the pocket world: haystacks, records, resuming, the page, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from evalsuite.cli.entry import main
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.probes.haystacks import draw_haystacks, locate, needle_benchmark
from evalsuite.evaluation.probes.measure import measure_probes, plan_probes
from evalsuite.foundation import ConfigError, DataError, RunFolderError
from evalsuite.models import build_student, load_checkpoint
from evalsuite.reports.records.probes import FILE, PROBE_FILE
from evalsuite.tasks.benchmark import BENCHMARKS
from evalsuite.tasks.generator import GENERATORS, Generator, NeedleMarks, RowRequest

SUITE = """\
name: small
title: One benchmark of the pocket world
benchmarks:
  - {benchmark: pocket_facts, protocols: [loglikelihood]}
"""
BENCHMARK = "pocket_niah_single_2"


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pure student and a hybrid with the pocket teacher's weights and untrained gates."""
    pocket = load_checkpoint("pocket", dtype="float32")
    root = tmp_path_factory.mktemp("students")
    for name, mixers in (
        ("pure", "gated_deltanet"),
        ("hybrid", ["gla", "softmax", "linear_attention", "gla"]),
    ):
        build_student(pocket.model, mixers).save_pretrained(root / name)
        pocket.tokenizer.save_pretrained(root / name)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, students: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.yaml").write_text(SUITE)
    paths = [str(path) for path in students.values()]
    config = RunConfig(
        suite=folder / "small.yaml",
        checkpoints=paths,
        teacher="pocket",
        limit=4,
        out=folder / "run",
        quiet=True,
    )
    evaluate(config)
    return folder / "run"


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(evaluated, tmp_path / "run"))


def options(*more: str) -> list[str]:
    return [
        *("--benchmark", BENCHMARK, "--lengths", "128", "--depths", "0", "50", "100", "--documents", "2"),
        *("--device", "cpu", "--quiet", *more),
    ]


def test_the_command_writes_records_that_the_page_shows(
    run: Path, students: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["probe", str(students["pure"]), str(students["hybrid"]), "--out", str(run)]
    assert main([*command, *options("--dry-run")]) == 0
    assert "pure at 128 tokens: 4 documents" in capsys.readouterr().out
    assert not (run / FILE).exists()
    assert main([*command, *options()]) == 0
    printed = capsys.readouterr().out
    assert "pure at 128 tokens: 0 of 4 needles found" in printed
    assert "layers 1: softmax, attention mass only" in printed
    frame = PROBE_FILE.read(run / FILE)
    labels = {str(load_checkpoint(path).weights_id): name for name, path in students.items()}
    frame = frame.assign(label=frame["weights_id"].map(labels))
    # 4 documents × 4 heads × 4 segments in recurrent layers, the question alone in the softmax layer.
    assert frame.groupby(["label", "layer"]).size().to_dict() == {
        ("hybrid", 0): 64,
        ("hybrid", 1): 16,
        ("hybrid", 2): 64,
        ("hybrid", 3): 64,
        **{("pure", layer): 64 for layer in range(4)},
    }
    kept = frame[(frame["mixer"] == "linear_attention") & (frame["segment"] != "before")]
    # A needle right before the question leaves no tokens after it.
    assert kept["log_decay"].isna().eq(kept["tokens"] == 0).all()
    assert kept["log_decay"].dropna().eq(0).all()
    assert kept["retained"].to_numpy() == pytest.approx(1.0, abs=1e-4)
    has_beta = (frame["mixer"] == "gated_deltanet") & (frame["tokens"] > 0)
    assert frame["beta"].notna().eq(has_beta).all()
    deep = frame.drop_duplicates("doc_id")["depth"]
    assert ((deep >= 0) & (deep <= 100)).all()
    assert (deep < 50).sum() == (deep >= 50).sum() == 2
    # Repeated, nothing is left to do; another length adds to the file.
    before = (run / FILE).read_bytes()
    assert main([*command, *options()]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (run / FILE).read_bytes() == before
    assert main([*command, *options("--lengths", "144")]) == 0
    assert set(PROBE_FILE.read(run / FILE)["context"]) == {128, 144}


def test_other_documents_replace_those_of_a_length(run: Path, students: dict[str, Path]) -> None:
    def measure(seed: int) -> pd.DataFrame:
        work = plan_probes(
            run,
            [str(students["pure"])],
            BENCHMARK,
            [128],
            depths=(0, 100),
            documents=2,
            seed=seed,
            device="cpu",
        )
        return measure_probes(run, work, device="cpu", quiet=True)

    first, second = measure(0), measure(1)
    assert not set(first["doc_id"]) & set(second["doc_id"])
    assert set(PROBE_FILE.read(run / FILE)["doc_id"]) == set(second["doc_id"])


@pytest.mark.parametrize("name", ["pocket_niah_single_1", "pocket_niah_single_3", "niah_single_1"])
def test_the_parts_of_a_haystack_are_where_its_tokens_are(name: str) -> None:
    tokenizer = load_checkpoint("pocket").tokenizer
    context = 1024 if name == "niah_single_1" else 256
    placed = draw_haystacks(*needle_benchmark(name), tokenizer, context, (0, 100), 3)
    assert len({each.haystack.doc_id for each in placed}) == 3
    for each in placed:
        haystack = each.haystack
        tokens = list(haystack.tokens)

        def text(start: int, end: int, tokens: list[int] = tokens) -> str:
            return tokenizer.decode(tokens[start:end])

        value = text(*haystack.value)
        assert text(*haystack.needle).strip().startswith("One of the special magic")
        assert text(*haystack.needle).endswith(f"{value}.")
        assert text(haystack.question, haystack.answer).strip().startswith("What is the special magic")
        assert text(haystack.answer, len(tokens)) == f" {value}"
        assert text(haystack.answer_value, len(tokens)) == value
        assert len(tokens) <= context


def test_bad_input_is_refused(run: Path, students: dict[str, Path], tmp_path: Path) -> None:
    pure = str(students["pure"])

    def plan(*checkpoints: str, **more: Any) -> None:
        how = {"run": run, "benchmark": BENCHMARK, "contexts": (128,), "device": "cpu", **more}
        plan_probes(checkpoints=checkpoints, **how)

    with pytest.raises(ConfigError, match="pocket: has no recurrent layer"):
        plan("pocket")
    with pytest.raises(ConfigError, match=r"--lengths 4096: .*pure reads 1 to 2,048 tokens"):
        plan(pure, contexts=(128, 4096))
    with pytest.raises(ConfigError, match="--benchmark pocket_facts: its prompts do not hold one needle"):
        plan(pure, benchmark="pocket_facts")
    with pytest.raises(ConfigError, match="64 tokens are too few"):
        plan(pure, contexts=(64,))
    with pytest.raises(ConfigError, match="--depths 50 20: must ascend"):
        plan(pure, depths=(50, 20))
    with pytest.raises(ConfigError, match="two or more bounds from 0 to 100"):
        plan(pure, depths=(0, 120))
    with pytest.raises(ConfigError, match="--documents 0"):
        plan(pure, documents=0)
    with pytest.raises(DataError, match=r"0 of 2 needles at a depth of 0.1 to 0.2 %; use wider --depths"):
        plan(pure, depths=(0.1, 0.2), documents=2)
    with pytest.raises(RunFolderError, match="not a run folder"):
        plan(pure, run=tmp_path)
    (run / FILE).write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"probes.parquet: not a file of probes"):
        plan(pure)
    assert main(["probe", pure, "--out", str(run), *options()]) == DataError.exit_code


def test_a_prompt_without_its_needle_is_refused() -> None:
    question = "\nWhat is the special magic number for a b mentioned? It is"
    needle = "One of the special magic numbers for a b is: 12."
    marks = NeedleMarks("One of the special magic ", "\nWhat is the special magic ")
    spans = locate(f"Header.\nSky. {needle} Sun.{question}", "12", marks, "x")
    assert spans["needle"] == (13, 13 + len(needle))
    for prompt, reason in (
        (f"Header.\nSky. Sun.{question}", "no needle in the context that states '12' once"),
        (f"Header.\n{needle} {needle}{question}", "states '12' once"),
        (f"Header.\nIt is 12. Sun.{question}", "no needle"),
        (f"Header.\n{needle}", "does not end with a question"),
    ):
        with pytest.raises(DataError, match=f"x: .*{reason}"):
            locate(prompt, "12", marks, "x")


def test_a_generator_says_what_marks_its_needles(monkeypatch: pytest.MonkeyPatch) -> None:
    def codes(request: RowRequest) -> list[dict[str, Any]]:
        filler = "The sun is yellow. " * 9
        prompt = "Read.\n{filler}The code of door {n} is 99. {filler}\nWhich code has door {n}? It is"
        return [
            {"prompt": prompt.format(n=n, filler=filler), "answers": ["99"]} for n in range(request.count)
        ]

    generator = Generator(codes, needles={"codes": NeedleMarks("The code of ", "\nWhich code has ")})
    benchmark = needle_benchmark("niah_single_1")[0]
    assert benchmark.generated is not None
    generated = benchmark.generated.model_copy(update={"generator": "codes", "task": "codes"})
    monkeypatch.setitem(GENERATORS._items, "codes", generator)
    made = benchmark.model_copy(update={"name": "codes", "generated": generated})
    monkeypatch.setitem(BENCHMARKS._items, "codes", made)
    tokenizer = load_checkpoint("pocket").tokenizer
    [placed] = draw_haystacks(*needle_benchmark("codes"), tokenizer, 512, (0, 100), 1)
    assert placed.depth == pytest.approx(50, abs=5)

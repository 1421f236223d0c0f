"""`evalsuite show benchmarks | suites`: what there is, how much of it is here, and what must be prepared."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evalsuite.cli import main


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "baber__piqa" / "default" / "validation.parquet"
    path.parent.mkdir(parents=True)
    rows = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, str], str]:
    assert main(["show", *arguments]) == 0
    out = capsys.readouterr().out
    return {line.split("  ")[0]: line for line in out.splitlines() if line}, out


def test_show_benchmarks_counts_documents(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = shown(capsys, "benchmarks", "--data", str(data))
    assert "5 of 1,838" in lines["piqa"]
    assert "AFL-3.0" in lines["piqa"]
    assert "log-likelihood, generation" in lines["piqa"]
    assert "none of 2,376" in lines["arc_easy"]
    assert "200 x 4 lengths" in lines["pocket_niah_single_1"]
    assert "generation 4-shot" in lines["gsm8k"]
    assert "run `evalsuite prepare` for: aime24, aime25, aime26, arc_challenge, arc_easy" in out
    assert "humaneval needs EVALSUITE_RUN_CODE=1" in out


def test_show_benchmarks_without_data_lists_published_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVALSUITE_DATA", raising=False)
    lines, out = shown(capsys, "benchmarks")
    assert "1,838" in lines["piqa"]
    assert " of 1,838" not in lines["piqa"]
    assert "`evalsuite prepare SUITE --data DIR`" in out


def test_show_suites_lists_missing_data(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALSUITE_DATA", str(data))
    lines, out = shown(capsys, "suites")
    assert "greedy" in lines["quick"]
    # 500 documents of four sets, 200 of two, 100 at each of two lengths of two.
    assert "2,800" in lines["quick"]
    assert "t 0.7, 3 seeds" in lines["gendistill-2026"]
    assert "quick: no data here for arc_easy, hellaswag, lambada_openai, gsm8k, ifeval" in out


def test_show_benchmark_prints_prompts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "benchmark", "piqa", "--sample", "2", "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert out.count("piqa, loglikelihood, document") == out.count("piqa, generation, document") == 2
    assert "Question: goal" in out
    assert "▸' do not'" in out
    assert "A) do\nB) do not" in out


def test_show_mixers_begins_with_their_taxonomy(capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = shown(capsys, "mixers")
    assert lines["mixer"].split("  ")[0] == "mixer"
    for name, *cells in (
        ("kda", "delta", "input-dependent", "channel"),
        ("retnet", "additive", "fixed", "head"),
        ("deltanet", "delta", "none"),
        ("softmax", "attention", "768 B"),
    ):
        assert all(cell in lines[name] for cell in cells)
    # Heads · keys · values in float32, and three inputs of the convolution of each of q, k and v in bfloat16.
    state = 9 * 64 * 64 * 4 + 3 * 9 * 64 * 3 * 2
    assert f"{state / 1024:.1f} KiB" in lines["kda"]
    assert out.index("retnet  ") < out.index("retnet: ")

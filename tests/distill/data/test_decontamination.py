"""N-gram overlap between training texts and benchmark documents."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from evalsuite.distill.data import decontamination
from evalsuite.distill.data.decontamination import NgramIndex, ngram_hashes, strings
from evalsuite.distill.data.examples import document_hash

WORDS = [f"word{index}" for index in range(100)]


def run(start: int, length: int) -> str:
    return " ".join(WORDS[start : start + length])


def test_ngrams_ignore_case_and_punctuation():
    plain, decorated = ngram_hashes("a b c d"[:7], 3), ngram_hashes("“A, b!\n(C) -- d_", 3)
    assert len(plain) == 2
    assert np.array_equal(plain, decorated)
    assert len(ngram_hashes("a b", 3)) == 0
    assert not set(ngram_hashes("a b c", 3)) & set(ngram_hashes("c b a", 3))


def test_strings_of_a_row_are_matched_separately():
    row = {"question": run(0, 8), "choices": {"text": [run(8, 8), run(16, 13)]}, "label": 3}
    assert list(strings(row)) == [run(0, 8), run(8, 8), run(16, 13)]
    index = NgramIndex({"b": [row]})
    assert not index.match([run(0, 16)]).any()
    assert index.match([run(10, 30)]).all()


def test_counts_are_per_document():
    rows = {"first": [run(0, 20), run(40, 20), run(0, 5)], "second": [run(10, 20)], "none": [run(70, 14)]}
    index = NgramIndex(rows)
    texts = [f"before {run(5, 18)} after", "nothing at all", run(0, 12), "x"]
    assert index.match(texts).tolist() == [True, False, False, False]
    counts = index.counts()
    assert (counts["first"].documents, counts["first"].long_enough, counts["first"].overlapping) == (3, 2, 1)
    assert counts["second"].overlapping == 1
    assert counts["none"].overlapping == 0


def test_the_command_writes_an_exclusion_list(
    tmp_path: Path, teacher_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    texts = [
        f"{run(0, 14)} number {index}" if index == 2 else f"text {index} of {run(index, 9)}"
        for index in range(9)
    ]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = {
        "name": "r",
        "teacher": str(teacher_folder),
        "data": {"text": {"kind": "local", "files": [str(tmp_path / "text.jsonl")]}},
        "stages": [
            {
                "name": "s",
                "objective": "kd",
                "data": "text",
                "tokens": 64,
                "seq_len": 8,
                "batch_size": 2,
                "lr": 0.001,
            }
        ],
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    monkeypatch.setattr(
        decontamination, "suite_rows", lambda suite, data: {"quiz": [{"q": run(1, 13)}, {"q": run(50, 13)}]}
    )
    command = ["decontamination", str(tmp_path / "r.yaml"), "any", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", command)
    decontamination.main()
    assert (tmp_path / "out/overlap-exclude.txt").read_text() == f"{document_hash(texts[2]):016x}\n"
    with open(tmp_path / "out/overlap.csv") as file:
        assert list(csv.DictReader(file)) == [
            {
                "benchmark": "quiz",
                "documents": "2",
                "long_enough": "2",
                "overlapping": "1",
                "share": "0.5000",
            }
        ]
    excluded = f"data.text.exclude={tmp_path / 'out/overlap-exclude.txt'}"
    monkeypatch.setattr("sys.argv", [*command[:4], str(tmp_path / "after"), "--set", excluded])
    decontamination.main()
    assert "text,8,8,0,0.0000" in capsys.readouterr().out

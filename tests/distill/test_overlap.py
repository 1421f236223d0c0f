"""Runs of words that training text and evaluated documents share."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from evalsuite.distill import overlap
from evalsuite.distill.overlap import Evaluated, gram_hashes, strings
from evalsuite.distill.readers import document_hash

WORDS = [f"word{index}" for index in range(100)]


def run(start: int, length: int) -> str:
    return " ".join(WORDS[start : start + length])


def test_runs_are_those_of_the_words_whatever_stands_between():
    plain, decorated = gram_hashes("a b c d"[:7], 3), gram_hashes("“A, b!\n(C) -- d_", 3)
    assert len(plain) == 2
    assert np.array_equal(plain, decorated)
    assert len(gram_hashes("a b", 3)) == 0
    assert not set(gram_hashes("a b c", 3)) & set(gram_hashes("c b a", 3))


def test_every_string_of_a_row_counts_on_its_own():
    row = {"question": run(0, 8), "choices": {"text": [run(8, 8), run(16, 13)]}, "label": 3}
    assert list(strings(row)) == [run(0, 8), run(8, 8), run(16, 13)]
    evaluated = Evaluated({"b": [row]})
    assert not evaluated.look_for([run(0, 16)]).any()
    assert evaluated.look_for([run(10, 30)]).all()


def test_counts_are_of_documents():
    rows = {"first": [run(0, 20), run(40, 20), run(0, 5)], "second": [run(10, 20)], "none": [run(70, 14)]}
    evaluated = Evaluated(rows)
    texts = [f"before {run(5, 18)} after", "nothing at all", run(0, 12), "x"]
    assert evaluated.look_for(texts).tolist() == [True, False, False, False]
    counts = evaluated.counts()
    assert (counts["first"].documents, counts["first"].long_enough, counts["first"].overlapping) == (3, 2, 1)
    assert counts["second"].overlapping == 1
    assert counts["none"].overlapping == 0


def test_the_command_lists_documents_that_a_source_can_leave_out(
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
                "length": 8,
                "batch": 2,
                "lr": 0.001,
            }
        ],
    }
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    monkeypatch.setattr(
        overlap, "suite_rows", lambda suite, data: {"asked": [{"q": run(1, 13)}, {"q": run(50, 13)}]}
    )
    command = ["overlap", str(tmp_path / "r.yaml"), "any", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", command)
    overlap.main()
    assert (tmp_path / "out/overlap-exclude.txt").read_text() == f"{document_hash(texts[2]):016x}\n"
    with open(tmp_path / "out/overlap.csv") as file:
        assert list(csv.DictReader(file)) == [
            {
                "benchmark": "asked",
                "documents": "2",
                "long_enough": "2",
                "overlapping": "1",
                "share": "0.5000",
            }
        ]
    excluded = f"data.text.exclude={tmp_path / 'out/overlap-exclude.txt'}"
    monkeypatch.setattr("sys.argv", [*command[:4], str(tmp_path / "after"), "--set", excluded])
    overlap.main()
    assert "text,8,8,0,0.0000" in capsys.readouterr().out

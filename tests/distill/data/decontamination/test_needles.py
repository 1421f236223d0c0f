"""Needles in training text: keys, values, templates and haystacks."""

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from evalsuite.distill.data.decontamination import needles
from evalsuite.distill.data.decontamination.needles import NeedleOverlap, needle_overlap, texts_of
from evalsuite.foundation import DataError

TEMPLATE = "A special number is hidden within the following text here."


def row(number: int) -> dict[str, Any]:
    words = " ".join(f"essay{number}x{word}" for word in range(20))
    return {
        "prompt": f"{TEMPLATE}\n{words}\nWhat is the number",
        "keys": [f"find-kettle{'abc'[number]}"],
        "inside": [f"100000{number}"],
        "outside": [f"200000{number}"],
    }


ROWS = {"needle_b": [row(0), row(1), row(2)]}


def found(*texts: str) -> NeedleOverlap:
    (overlap,) = needle_overlap(ROWS, texts)
    return overlap


def test_clean_text_has_no_overlap() -> None:
    # Parts of keys and numbers, and seven words in a row, are no overlap.
    clean = found("kettlea find kettleb 10000001 1,000,00 find-kettlebc", " ".join(TEMPLATE.split()[:7]))
    assert clean == NeedleOverlap("needle_b", 3, 0, 0, 0, 0.0, 3, 0)


def test_each_part_is_counted() -> None:
    assert found("to Find-Kettlea is", "find-kettleb").with_key == 2
    assert found("1,000,002 people and 2000002").with_value == 1
    assert found(f"Before. {TEMPLATE.upper()} After").template_matches == 3
    copied = found(" ".join(f"essay1x{word}" for word in range(4, 13)))
    assert (copied.with_ngram, copied.template_matches) == (1, 0)
    assert 0 < copied.largest_share < 0.2


def test_other_documents_are_refused() -> None:
    with pytest.raises(DataError, match="mqar: its documents have no 'keys'; these are no needles"):
        needle_overlap({"mqar": [{"prompt": "x"}]}, [])


def test_command_reads_documents_and_training_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = tmp_path / "needle_b.jsonl"
    documents.write_text(
        "".join(json.dumps({"doc_id": "x", "row": each}) + "\n" for each in ROWS["needle_b"])
    )
    lines = [{"text": "find-kettlea", "source": "s"}, {"messages": [{"role": "user", "content": "1000001"}]}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "t.jsonl.zst").write_bytes(zstandard.compress(text.encode()))
    assert "1000001" in list(texts_of([tmp_path / "t.jsonl.zst"]))
    arguments = [str(documents), "--text", str(tmp_path / "*.zst"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["needles", *arguments])
    needles.main()
    assert "needle_b,3,1,1,0,0.00000,3,0" in capsys.readouterr().out
    assert (tmp_path / "out/overlap-needles.csv").is_file()
    monkeypatch.setattr("sys.argv", ["needles", str(documents), "--text", "nothing", "--out", str(tmp_path)])
    with pytest.raises(DataError, match="--text nothing: no such file"):
        needles.main()

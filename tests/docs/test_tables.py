"""Tables of pages that are read from tracked results."""

from pathlib import Path

import pytest

from docs._generate import reference, tables
from evalsuite.models.mixers import MIXERS


def test_files_of_one_shape_are_one_table_with_their_studies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    for name, text in {
        "one/a/drops.csv": "student,gap\n`kda`,+1.0 (0.2 to 1.8)\n",
        "two/drops.csv": 'student,gap\n"a, b|c",–\n',
        "two/other.csv": "student,runs\nkda,3\n",
        "two/empty.csv": "student,gap\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert reference.generate("csv one/a/drops.csv").splitlines() == [
        "| student | gap |",
        "| --- | ---: |",
        "| `kda` | +1.0 (0.2\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}1.8) |",
    ]
    assert reference.generate("csv one/a/drops.csv two/drops.csv").splitlines()[2:] == [
        "| one/a | `kda` | +1.0 (0.2\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}1.8) |",
        "| two | a, b\\|c | – |",
    ]
    with pytest.raises(ValueError, match=r"two/other\.csv: its columns are not those of one/a/drops\.csv"):
        reference.generate("csv one/a/drops.csv two/other.csv")
    with pytest.raises(ValueError, match=r"two/missing\.csv: no such file"):
        reference.generate("csv two/missing.csv")
    with pytest.raises(ValueError, match=r"two/empty\.csv: empty"):
        reference.generate("csv two/empty.csv")


def test_the_readme_counts_mixers_and_families() -> None:
    root = Path(__file__).parents[2]
    text = " ".join((root / "README.md").read_text().split())
    families = [
        line for line in (root / "docs/reference/families.md").read_text().splitlines() if line[:2] == "| "
    ]
    assert f"any of {len(set(MIXERS) - {'softmax'})} mixers" in text
    assert f"[{len(families) - 1} families]" in text

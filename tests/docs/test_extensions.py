"""Every page below docs/extend: its example is short, complete, and has the effect that the page states."""

from pathlib import Path

import pandas as pd
import pytest

from tests.docs.page_code import ROOT, PageCode

EXTEND = ROOT / "docs" / "extend"
MAX_LINES = 30


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path) -> PageCode:
    """The page that the test's name ends with."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    return PageCode(EXTEND / f"{name}.md", tmp_path)


@pytest.mark.parametrize("path", sorted(EXTEND.glob("*.md")), ids=lambda path: path.stem)
def test_examples_are_short(path: Path, tmp_path: Path) -> None:
    if path.stem not in ("index", "plugin"):
        assert len(PageCode(path, tmp_path).example.splitlines()) <= MAX_LINES


def test_scorer(page: PageCode) -> None:
    page.run()
    (file,) = (page.folder / "runs" / "sums" / "scores").glob("*.parquet")
    scores = pd.read_parquet(file)
    assert len(scores) == 20
    assert (scores["value.relative_error"] == 0).mean() > 0.9

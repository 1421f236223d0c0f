"""Every page below docs/extend: its example is short, complete, and has the effect that the page states."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from safetensors.numpy import load_file

from tests.docs.page_code import ROOT, PageCode

EXTEND = ROOT / "docs" / "extend"
MAX_LINES = 30


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path) -> PageCode:
    """The page that the test's name ends with."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    return PageCode(EXTEND / f"{name}.md", tmp_path)


def use_as_demo(page: PageCode, fixture: str) -> None:
    """Put a small run where the pages expect the demo's."""
    shutil.copytree(ROOT / "tests" / "reports" / "fixtures" / fixture, page.folder / "runs" / "demo")


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


def test_page_section(page: PageCode) -> None:
    use_as_demo(page, "failing")
    page.run()
    text = (page.folder / "report" / "index.html").read_text()
    assert '<a href="#proven-losses">Proven losses</a>' in text
    assert text.index('id="recovery"') < text.index('id="proven-losses"') < text.index('id="gap"')


def test_mixer(page: PageCode) -> None:
    printed = page.run()
    assert "learned_decay: Additive rule with a decay per head that is trained." in printed
    weights = load_file(page.folder / "students" / "learned_decay" / "model.safetensors")
    decays = [weight for name, weight in weights.items() if name.endswith("decay_logit")]
    assert decays
    assert all((decay != decay[0]).any() for decay in decays), "the decay was not trained"
    for check in ("batched", "padded left", "packed", "decode"):
        assert re.search(rf"^{check} .* 0/4$", printed, re.MULTILINE), printed

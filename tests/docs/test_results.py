"""Tracked results: every file is named by a page, and all of them are small."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "reports" / "results"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT = 15_000_000
"""Bytes of all results together, but for the responses on which the first result rests."""
RESPONSES = ("decision/smollm2.tar.xz", "decision/gemma.tar.xz")


def files() -> list[Path]:
    """All results but the pages themselves, without what a system leaves behind."""
    return [
        path
        for path in sorted(RESULTS.rglob("*"))
        if path.is_file() and path.name != "README.md" and not path.name.startswith(".")
    ]


def pages(path: Path) -> list[Path]:
    """The pages of the folders that hold a file, up to that of the study."""
    folders = [folder for folder in path.parents if folder != RESULTS and folder.is_relative_to(RESULTS)]
    return [page for folder in folders for page in sorted(folder.glob("*.md")) if page != path]


def is_named(path: Path) -> bool:
    """Whether a page names the file or a folder that holds it, or a document links to the file."""
    for page in pages(path):
        text, place = page.read_text(), path.relative_to(page.parent)
        folders = [f"{folder.as_posix()}/" for folder in place.parents if folder != Path()]
        if any(name in text for name in (path.name, *folders)):
            return True
    return any(path.relative_to(RESULTS).as_posix() in page.read_text() for page in DOCS)


@pytest.mark.parametrize("study", sorted(path.name for path in RESULTS.iterdir() if path.is_dir()))
def test_every_result_is_named_by_its_page(study: str) -> None:
    assert (RESULTS / study / "README.md").is_file()
    own = [path for path in files() if path.is_relative_to(RESULTS / study)]
    assert [str(path.relative_to(RESULTS)) for path in own if not is_named(path)] == []


def test_results_are_small() -> None:
    sizes = {
        path.relative_to(RESULTS).as_posix(): path.stat().st_size
        for path in RESULTS.rglob("*")
        if path.is_file()
    }
    assert sum(size for name, size in sizes.items() if name not in RESPONSES) <= LIMIT

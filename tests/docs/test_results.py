"""Tracked results: every file is named by a page, none names a machine's folders, and all are small."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "reports" / "results"
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LIMIT = 15_000_000
"""Bytes of all results together, but for the responses on which the first result rests."""
RESPONSES = ("decision/smollm2.tar.xz", "decision/gemma.tar.xz")
TEXTS = (".csv", ".html", ".json", ".jsonl", ".md", ".svg", ".yaml")
MACHINE_PATH = re.compile(rb"""["'\s(=:,]/(tmp|root|home|work|workspace|mnt)/[\w.-]+""")


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


def test_no_result_holds_a_path_of_the_machine_that_made_it() -> None:
    texts = [path for path in RESULTS.rglob("*") if path.suffix in TEXTS]
    found = {path.relative_to(RESULTS): MACHINE_PATH.search(path.read_bytes()) for path in texts}
    assert {path: match[0] for path, match in found.items() if match} == {}


def test_results_are_small() -> None:
    sizes = {
        path.relative_to(RESULTS).as_posix(): path.stat().st_size
        for path in RESULTS.rglob("*")
        if path.is_file()
    }
    assert sum(size for name, size in sizes.items() if name not in RESPONSES) <= LIMIT


@pytest.mark.parametrize("study", ["pocket-10m", "smollm2"])
def test_the_table_of_the_gap_studies_is_that_of_their_files(study: str) -> None:
    folder = RESULTS / "gap-study"
    drops, leads = (
        list(csv.DictReader((folder / study / name).open())) for name in ("drops.csv", "lost_leads.csv")
    )
    lines = (folder / "README.md").read_text().splitlines()
    for drop, lead in zip(drops, leads, strict=True):
        assert drop["student"] == lead["student"]
        measured = (drop[name] for name in ("drop, log-likelihood", "drop, generation", "gap"))
        lost = (lead[name].split(" ")[0] for name in ("lost, log-likelihood", "lost, generation"))
        row = f" | {drop['runs']} | {' | '.join(measured)} | {' / '.join(lost)} % |".replace("+", "")
        assert [line for line in lines if line.endswith(row)], row

"""The built documentation: complete reference, no requests to other hosts, readable formulas."""

import ast
import csv
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs._generate import tables
from evalsuite.cli.entry import build_parser

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("evalsuite", "tasks", "models", "distill", "reports")


class Loads(HTMLParser):
    """Addresses that a browser loads while it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") != "canonical":
            self.found.append(values.get("href") or "")


def config_classes() -> dict[str, list[str]]:
    """Public subclasses of Strict in the product's sources: name → the fields that they define."""
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "studies" not in path.parts]
    trees = [ast.parse(path.read_text()) for path in paths]
    definitions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {"Strict"}
    while True:
        # Other classes may have the name of a configuration class, so bases decide, not names.
        found = [node for node in definitions if any(getattr(base, "id", "") in known for base in node.bases)]
        if {node.name for node in found} <= known:
            break
        known |= {node.name for node in found}
    return {node.name: fields for node in found if node.name[0] != "_" and (fields := public_fields(node))}


def public_fields(node: ast.ClassDef) -> list[str]:
    """Fields as YAML names them."""
    return [
        each.target.id.rstrip("_")
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and each.target.id[0] != "_"
        and "ClassVar" not in ast.unparse(each.annotation)
    ]


@pytest.fixture(scope="module")
def reference(site: Path) -> str:
    return "".join(path.read_text() for path in sorted((site / "reference").glob("*.html")))


def test_every_field_of_every_configuration_class_is_documented(reference: str) -> None:
    sections: dict[str, str] = {}
    for name, text in re.findall(r'<h3 id="[^"]*">(\w+)<a.*?</h3>(.*?)(?=<h[123] |$)', reference, re.DOTALL):
        # A run's manifest has a Benchmark, too.
        sections[name] = sections.get(name, "") + text
    classes = config_classes()
    assert {"Recipe", "Suite", "Benchmark", "Policy"} <= set(classes)
    missing = [
        f"{name}.{field}"
        for name, fields in classes.items()
        for field in fields
        if f"<code>{field}</code>" not in sections.get(name, "")
    ]
    assert not missing


def test_every_option_of_every_command_is_documented(site: Path) -> None:
    text = (site / "reference" / "command-line.html").read_text()
    verbs = next(action for action in build_parser()._actions if action.dest == "verb")
    assert verbs.choices
    for verb, parser in dict(verbs.choices).items():  # type: ignore[call-overload]
        chapter = text.partition(f'<h2 id="{verb}">')[2].partition("<h2 ")[0]
        assert chapter, verb
        for option in (name for action in parser._actions for name in action.option_strings):
            assert option in ("-h", "--help") or option in chapter, f"{verb} {option}"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert not [url for url in loads.found if "//" in url], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "method.html").read_text()
    assert "<math" in page
    assert "arithmatex" not in page


def test_results_are_pages_and_their_files_are_copied(site: Path) -> None:
    page = (site / "results" / "smollm2-135m-instruct.html").read_text()
    assert 'src="smollm2-135m-instruct/leaderboard.png"' in page
    assert (site / "results" / "smollm2-135m-instruct" / "leaderboard.png").is_file()
    folder = site / "results" / "pocket"
    assert "<h1" in (folder / "leaderboard.html").read_text()


def test_notebooks_are_pages(site: Path) -> None:
    notebooks = list((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert notebooks
    for path in notebooks:
        page = (site / "notebooks" / f"{path.stem}.html").read_text()
        shown = html.unescape(re.sub(r"<[^>]+>", "", page))
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert cells
        assert all("".join(cell["source"]) in shown for cell in cells)
        assert f'href="{path.name}"' in page
        assert (site / "notebooks" / path.name).is_file()


def test_every_drop_of_every_study_is_on_the_page_of_gap_studies(site: Path) -> None:
    page = (site / "gap-studies.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    drops = sorted(tables.RESULTS.rglob("drops.csv"))
    assert len(drops) >= 4
    for path in drops:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                assert f">{row['gap']}</td>" in page, path

"""The page in a real browser: sort, filter, drill down, dark mode, no error, no request."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evalsuite.reports import compare

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

UNNAMED = """() => [...document.querySelectorAll('button, select, input, a, svg[role=img], [tabindex]')]
    .filter((e) => e.id !== 'drill-body')
    .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.title))
    .filter((e) => !e.labels?.[0]?.textContent.trim())
    .map((e) => e.outerHTML.slice(0, 120))"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_path(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the small run, with question texts."""
    out = tmp_path_factory.mktemp("page")
    return compare([small_run], out, questions=lambda b, ids: dict.fromkeys(ids, "<b>Why?</b>")).page


@pytest.fixture(params=[(360, "light"), (360, "dark"), (1440, "light"), (1440, "dark"), (2560, "light")])
def page(browser: Any, page_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page at a width and colour scheme; fails afterwards on any console message, error or request."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else trouble.append(r.url))
    page.goto(page_path.as_uri())
    page.scheme = scheme
    yield page
    context.close()
    assert trouble == []


def labels(page: Any) -> list[str]:
    """Labels of the students of the table that is shown, from the top."""
    return page.locator(".view:not([hidden]) tbody:not(.anchor) .model .name").all_inner_texts()


def test_sort_filter_and_drill_down(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert labels(page) == ["strong", "weak"]
    recovery = page.locator(".view:not([hidden]) th:has(.sorter)").nth(2)
    recovery.locator("button").click()
    assert recovery.get_attribute("aria-sort") == "descending"
    recovery.locator("button").click()
    assert recovery.get_attribute("aria-sort") == "ascending"
    assert labels(page) == ["weak", "strong"]

    page.locator("input[name=protocol][value=generation]").check()
    assert page.locator(".view:not([hidden])").get_attribute("data-protocol") == "generation"
    page.locator("input[name=scope][value=recall]").check()
    shown = page.locator(".view:not([hidden])")
    assert shown.count() == 1
    assert shown.locator("thead .first").inner_text().startswith("S-NIAH-1")
    page.locator("input[name=protocol][value=loglikelihood]").check()
    assert page.locator(".view:not([hidden])").count() == 0
    assert page.locator("#empty").is_visible()
    page.locator("input[name=scope][value=all]").check()

    page.locator(".view:not([hidden]) button.cell[data-key='2|arc_easy|loglikelihood|']").click()
    dialog = page.locator("dialog[open]")
    dialog.locator(".doc").first.wait_for()
    assert dialog.locator(".doc").count() == 20
    assert "weak on ARC-Easy: ranked" in dialog.locator("h2").inner_text()
    assert dialog.locator(".question").first.inner_text() == "<b>Why?</b>"
    assert dialog.locator(".choices").first.locator("li").count() == 4
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0

    page.locator("button.cell[data-key='gap|2|arc_easy|']").click()
    dialog.locator(".doc").first.wait_for()
    assert "ranked right, written wrong" in dialog.locator("h2").inner_text()
    page.locator("#drill-close").click()

    page.locator("#gap-student").select_option(label="strong")
    assert page.locator(".gap-table:not([hidden])").get_attribute("data-subject") == "1"


def test_colours_follow_the_system_and_the_button(page: Any) -> None:
    def background() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark, light = "rgb(18, 19, 21)", "rgb(251, 251, 249)"
    assert background() == (dark if page.scheme == "dark" else light)
    button = page.locator("#theme")
    button.click()
    assert background() == light
    button.click()
    assert background() == dark
    assert button.inner_text() == "Dark"
    page.emulate_media(media="print")
    assert background() == "rgb(255, 255, 255)"


def test_everything_has_a_name_and_can_be_reached_by_keyboard(page: Any) -> None:
    unnamed = page.evaluate(UNNAMED)
    assert unnamed == []
    page.locator(".view:not([hidden]) button.cell").first.focus()
    page.keyboard.press("Enter")
    page.locator("dialog[open] .doc").first.wait_for()
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    levels = "[...document.querySelectorAll('main h1, main h2, main h3')].map((e) => +e.tagName[1])"
    headings = page.evaluate(levels)
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))

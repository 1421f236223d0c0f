"""The page in Chromium: sorting, filters, drill-down, dark mode, no errors, no requests."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evalsuite.reports import compare, policy_from_options

CHROMIUM = Path(os.environ.get("EVALSUITE_CHROMIUM", "/usr/bin/chromium"))
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
    """The page at a width and color scheme; fails afterwards on any console message, error or request."""
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
    assert "weak on ARC-Easy: log-likelihood" in dialog.locator("h2").inner_text()
    assert dialog.locator(".question").first.inner_text() == "<b>Why?</b>"
    assert dialog.locator(".choices").first.locator("li").count() == 4
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0

    page.locator("button.cell[data-key='gap|2|arc_easy|']").click()
    dialog.locator(".doc").first.wait_for()
    assert "correct under log-likelihood, wrong under generation" in dialog.locator("h2").inner_text()
    page.locator("#drill-close").click()

    page.locator("#gap-student").select_option(label="strong")
    assert page.locator(".gap-table:not([hidden])").get_attribute("data-checkpoint") == "1"


def test_colors_follow_the_system_and_the_button(page: Any) -> None:
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


CUT = """() => [...document.querySelectorAll('figure.card svg text, table svg text')]
    .filter((e) => e.getClientRects().length)
    .filter((e) => {
        const [own, frame] = [e, e.closest('figure.card, td, th')].map((x) => x.getBoundingClientRect());
        return own.left < frame.left - 1 || own.right > frame.right + 1;
    })
    .map((e) => `${e.textContent} in ${e.closest('section').id}`)"""


@pytest.fixture(scope="module")
def rich_page(rich_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section, and a verdict."""
    policy = policy_from_options(min_recovery=0.9, max_gap=5)
    return compare([rich_run], tmp_path_factory.mktemp("rich_page"), policy=policy).page


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1440, "dark"), (2560, "light")])
def test_no_label_is_cut_and_nothing_is_wider_than_the_window(
    browser: Any, rich_page: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else trouble.append(r.url))
    page.goto(rich_page.as_uri())
    assert page.locator("section").count() == 12
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT) == []
    page.locator('.heat tr:has-text("gla-135m") button.cell').last.click()
    page.locator("dialog[open] .doc").first.wait_for()
    page.keyboard.press("Escape")
    page.locator("#layers svg.curves circle").first.hover(force=True)
    context.close()
    assert trouble == []


def test_it_prints(browser: Any, rich_page: Path) -> None:
    """The print layout expands all details and has several pages."""
    page = browser.new_page(viewport={"width": 1040, "height": 720})
    page.goto(rich_page.as_uri())
    pdf = page.pdf(prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type/Page/") > 3
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0
    page.close()

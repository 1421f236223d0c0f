"""The page in Chromium: sorting, filters, sample browser, dark mode, no errors, no requests."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from evalsuite.reports import compare, policy_from_options
from tests.reports.conftest import SyntheticBenchmark, SyntheticCheckpoint, make_run

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
    .filter((e) => e.id !== 'sample-body')
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


@pytest.fixture(
    params=[
        (360, "light"),
        pytest.param((360, "dark"), marks=pytest.mark.long),
        pytest.param((1440, "light"), marks=pytest.mark.long),
        pytest.param((1440, "dark"), marks=pytest.mark.long),
        pytest.param((2560, "light"), marks=pytest.mark.long),
    ]
)
def page(browser: Any, page_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page at a width and color scheme; fails afterwards on any console message, error or request."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else trouble.append(r.url)
    )
    page.goto(page_path.as_uri())
    page.scheme = scheme
    assert page.locator("details.fold[open]").count() == 0
    unfold(page)
    yield page
    context.close()
    assert trouble == []


def unfold(page: Any) -> None:
    """Open all sections."""
    page.evaluate("document.querySelectorAll('details.fold').forEach((each) => { each.open = true; })")


def labels(page: Any) -> list[str]:
    """Labels of the students of the table that is shown, from the top."""
    return page.locator(".board tbody:not(.anchor) tr:not([hidden]) .model .name").all_inner_texts()


def test_sort_filter_and_samples(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert labels(page) == ["strong", "weak"]
    assert page.locator("input[name=scope]:checked").get_attribute("value") == "informative"
    recovery = page.locator(".board th:has(.sorter)").nth(2)
    recovery.locator("button").click()
    assert recovery.get_attribute("aria-sort") == "descending"
    recovery.locator("button").click()
    assert recovery.get_attribute("aria-sort") == "ascending"
    assert labels(page) == ["weak", "strong"]

    before = page.locator("tr[data-checkpoint='1'] .summary").first.inner_text()
    page.locator("input[name=protocol][value=generation]").check()
    assert labels(page) == ["strong", "weak"]
    assert page.locator("tr[data-checkpoint='1'] .summary").first.inner_text() != before
    page.locator("input[name=scope][value=recall]").check()
    heads = page.locator(".board thead th[data-column]:visible")
    assert [text.strip() for text in heads.all_inner_texts()] == ["S-NIAH-1"]
    page.locator("input[name=protocol][value=loglikelihood]").check()
    assert not page.locator(".board").is_visible()
    assert page.locator("#empty").is_visible()
    page.locator("input[name=scope][value=all]").check()
    assert page.locator("tr[data-checkpoint='2'] .mark").is_visible()

    page.locator(".board button.cell[data-key='2|arc_easy|loglikelihood|']").click()
    dialog = page.locator("dialog[open]")
    dialog.locator(".doc").first.wait_for()
    assert dialog.locator(".doc").count() == 20
    assert page.locator("#sample-about").inner_text() == "400 of 400 documents, shown: 1 to 20"
    assert page.locator("#sample-student").locator("option:checked").inner_text() == "weak"
    assert dialog.locator(".question").first.inner_text() == "<b>Why?</b>"
    assert dialog.locator(".choices").first.locator("li").count() == 4
    document = dialog.locator(".doc code").nth(3).inner_text()
    page.locator("#sample-document").fill(document)
    dialog.locator(f".doc:only-child code:text('{document}')").wait_for()
    page.locator("#sample-document").fill("")
    page.locator("#sample-flip").select_option("lost")
    dialog.locator(".doc:nth-child(2)").wait_for()
    verdicts = dialog.locator(".doc").first.locator("h4 span:last-child").all_inner_texts()
    assert verdicts == ["right", "wrong"]
    lost = page.locator("#sample-about").inner_text()
    page.locator("#sample-next").click()
    page.wait_for_function("document.getElementById('sample-about').innerText.includes('shown: 21')")
    page.locator("#sample-student").select_option("strong")
    page.wait_for_function("(lost) => document.getElementById('sample-about').innerText !== lost", arg=lost)
    assert page.locator("#sample-flip").input_value() == "lost"
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0

    page.locator("button.cell[data-key='gap|2|arc_easy|']").click()
    dialog.locator(".doc").first.wait_for()
    assert page.locator("#sample-flip").input_value() == "protocol"
    _, under_loglikelihood, under_generation = (
        dialog.locator(".doc").first.locator("h4 span:last-child").all_inner_texts()
    )
    assert under_loglikelihood == "right"
    assert under_generation.endswith("wrong")
    page.locator("#sample-close").click()

    page.locator("#gap-student").select_option(label="strong")
    page.locator(".gap-table[data-checkpoint='1']").wait_for()
    assert page.locator(".gap-table:not([hidden])").count() == 1


def students(page: Any) -> list[str]:
    """Labels of the rows that are shown in the table of students."""
    return page.locator(".students tbody tr:not([hidden]) th .name").all_inner_texts()


def test_students_are_searched_sorted_and_kept_in_the_address(page: Any) -> None:
    assert students(page) == ["strong", "weak"]
    search = page.locator("form.filter [name=q]")
    search.fill("WEA")
    assert students(page) == ["weak"]
    assert page.locator("form.filter output").inner_text() == "1 of 2 students"
    page.locator(".pick summary").click()
    page.locator(".pick input").first.uncheck()
    assert not page.locator(".students tbody tr:not([hidden]) td").first.is_visible()
    address = page.url
    assert "#students?q=WEA&without=1" in address
    page.goto("about:blank")
    page.goto(address)
    assert students(page) == ["weak"]
    assert not page.locator(".students tbody tr:not([hidden]) td").first.is_visible()
    page.locator("form.filter [name=q]").fill("")
    lowest = page.locator(".students th:has(.sorter)").first
    lowest.locator("button").click()
    lowest.locator("button").click()
    assert lowest.get_attribute("aria-sort") == "ascending"
    assert students(page) == ["weak", "strong"]
    page.reload()
    assert students(page) == ["weak", "strong"]


def test_a_link_unfolds_its_section(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details.fold').forEach((each) => { each.open = false; })")
    page.evaluate("location.hash = 'recovery'")
    page.locator(".board").wait_for()
    assert page.locator("#recovery").get_attribute("open") is not None
    assert page.locator("details.fold[open]").count() == 1


def test_the_first_screen_answers(page: Any) -> None:
    assert page.locator("table.students tbody tr").first.bounding_box()["y"] < 900
    assert page.evaluate("document.querySelector('h1').textContent").count("strong") >= 1
    smallest = """Math.min(...[...document.querySelectorAll('main *')]
        .filter((e) => e.childElementCount === 0 && e.textContent.trim() && e.getClientRects().length)
        .filter((e) => !e.closest('.sr, svg'))
        .map((e) => parseFloat(getComputedStyle(e).fontSize)))"""
    assert page.evaluate(smallest) >= (12 if page.viewport_size["width"] < 700 else 9)


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
    page.locator(".board button.cell:visible").first.focus()
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
    .map((e) => `${e.textContent} in ${e.closest('.fold, section').id}`)"""


PLACES = """() => [...document.querySelectorAll('section, .plot, td')]
    .filter((e) => e.getClientRects().length)
    .map((e) => Math.round(e.getBoundingClientRect().top + scrollY))"""
"""Where everything stands: drawing a figure moves nothing, so that a click meets what it was aimed at."""


@pytest.fixture(scope="module")
def rich_page(rich_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section, and a verdict."""
    policy = policy_from_options(min_recovery=0.9, max_gap=5)
    return compare([rich_run], tmp_path_factory.mktemp("rich_page"), policy=policy).page


def draw_all(page: Any) -> None:
    """Scroll to every figure, which draws it."""
    unfold(page)
    for figure in page.locator(".plot").all():
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"),
        pytest.param(1440, "dark", marks=pytest.mark.long),
        pytest.param(2560, "light", marks=pytest.mark.long),
    ],
)
def test_no_label_is_cut_and_nothing_is_wider_than_the_window(
    browser: Any, rich_page: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else trouble.append(r.url)
    )
    page.goto(rich_page.as_uri())
    assert page.locator("details.fold").count() == 12
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CUT) == []
    before = page.evaluate(PLACES)
    draw_all(page)
    assert page.locator(".plot:not([data-drawn])").count() == 0
    assert page.evaluate(PLACES) == before
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#scaling .plot .points path").first.hover(force=True)
    assert "recover" in page.locator("#scaling").first.inner_text().lower()
    page.locator("#scaling .hovertext").first.wait_for()
    context.close()
    assert trouble == []


def test_markup_and_formulas_stay_inert(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)><a href='https://example.org'>$x$</a>%{x}"
    checkpoints = [SyntheticCheckpoint(evil, lambda *_: 0.8, "teacher")]
    checkpoints += [SyntheticCheckpoint(f"{evil}{i}", lambda *_: 0.6) for i in range(3)]
    benchmarks = [SyntheticBenchmark("piqa", evil, "common_sense", 60, 0.5)]
    run = make_run(tmp_path / "run", benchmarks, checkpoints)
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else trouble.append(r.url)
    )
    page.goto(
        compare([run], tmp_path / "out", questions=lambda b, ids: dict.fromkeys(ids, evil)).page.as_uri()
    )
    draw_all(page)
    page.locator("button.cell:visible").first.click()
    page.locator("dialog[open] .question").first.wait_for()
    assert page.locator("dialog[open] .question").first.inner_text() == evil
    assert page.locator("img, .plot a, a[href^=http]").count() == 0
    assert evil in page.locator("#pairs .plot").first.text_content()
    tools = page.locator("#pairs .plot").first.locator(".modebar-btn")
    titles = tools.evaluate_all("buttons => buttons.map((each) => each.dataset.title)")
    assert titles == ["Download plot", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]
    context.close()
    assert trouble == []


@pytest.mark.long
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

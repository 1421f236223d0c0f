"""Sections are found by registration alone."""

from pathlib import Path

import pytest

from evalsuite.reports.page import render
from evalsuite.reports.page.sections import ordered_sections
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.section import SECTIONS, section


def test_a_registered_section_is_on_the_page(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SECTIONS, "_items", dict(SECTIONS._items))
    template = tmp_path / "mine.html.j2"
    template.write_text("<p>{{ view|length }} models: {{ view[0]|breakable }}</p>\n")

    @section("mine", "My <own> section", order=21, template=template)
    def mine(report: Report) -> list[str]:
        return ["<b>first_one</b>"] * len(report.checkpoints)

    page = render.render_page(build_report([small_run]))
    assert '<details class="fold" id="mine"><summary><h3>My &lt;own&gt; section</h3></summary>' in page
    assert "<p>3 models: &lt;b&gt;first_<wbr>one" in page
    assert page.index(' id="recovery"') < page.index(' id="mine"') < page.index(' id="gap"')
    with pytest.raises(ValueError, match="page section 'mine' is registered twice"):
        section("mine", "Again", order=22)(mine)


def test_a_section_without_data_is_not_on_the_page(small_run: Path) -> None:
    page = render.render_page(build_report([small_run]))
    assert 'id="cost"' not in page
    assert 'href="#cost"' not in page


def test_every_section_has_a_template_and_a_place() -> None:
    every = ordered_sections()
    assert len(every) >= 11
    assert len({each.order for each in every}) == len(every)
    assert all(each.template.is_file() for each in every)

"""MkDocs hooks: generated reference, notebooks, links to files outside docs/, and formulas as MathML.

A line `<!-- generate: WHAT -->` in a document is replaced by generated Markdown, so that nothing in the
reference is written by hand twice.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._generate import links, notebooks, reference

DIRECTIVE = re.compile(r"^<!-- generate: (?P<what>.+) -->$", re.MULTILINE)
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that documents link to, and the notebooks as pages."""
    for path, place in links.linked_files().items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    for place, markdown in notebooks.pages().items():
        files.append(File.generated(config, place, content=markdown))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links and expand the directives of a page."""
    if page.file.abs_src_path is None:
        return markdown
    markdown = links.rewrite(markdown, Path(page.file.abs_src_path))
    return DIRECTIVE.sub(lambda match: reference.generate(match["what"]), markdown)


def on_page_content(html_text: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers render without scripts or fonts of their own."""

    def mathml(match: re.Match[str]) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        return convert(html.unescape(match["tex"]), display=display)

    return FORMULA.sub(mathml, html_text)

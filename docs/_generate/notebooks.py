"""Notebooks as pages: their text, code and stored outputs; a test runs every cell."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs._generate.links import DOCS


def pages() -> dict[str, str]:
    """Return site path → Markdown of every notebook below docs/."""
    return {
        path.relative_to(DOCS).with_suffix(".md").as_posix(): as_markdown(path)
        for path in sorted(DOCS.rglob("*.ipynb"))
        if ".ipynb_checkpoints" not in path.parts
    }


def as_markdown(path: Path) -> str:
    """Return the cells of a notebook as Markdown, with a link to the file after the first one."""
    cells = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        cells.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        cells += map(_shown, cell.get("outputs", []))
    cells.insert(1, f"[Download the notebook]({path.name})")
    return "\n\n".join(cells)


def _shown(output: Mapping[str, Any]) -> str:
    """A table as HTML without its style, anything else as text."""
    data = output.get("data", {})
    if "text/html" in data:
        return re.sub(r"<style.*?</style>\s*", "", "".join(data["text/html"]), flags=re.DOTALL)
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"

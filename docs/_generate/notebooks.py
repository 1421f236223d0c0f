"""Notebooks as pages: their text and code. Outputs are not stored in them; a test runs every cell."""

import json
from pathlib import Path

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
    cells.insert(1, f"[Download the notebook]({path.name})")
    return "\n\n".join(cells)

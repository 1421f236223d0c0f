"""Links from the documentation to other files of the repository.

Documents link to what lies outside docs/ by relative path, which works where the repository is browsed. In
the site, a Markdown file that is linked becomes a page, any other file is copied, and links are rewritten.
"""

import re
from collections.abc import Callable
from os.path import relpath
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "reports" / "results"

LINK = re.compile(r"(?P<text>!?\[(?P<label>[^\]]*)\])\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def site_path(path: Path) -> str:
    """Return where a file of the repository lies in the site's sources: `results/engine.md`."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if not path.is_relative_to(RESULTS):
        return f"repository/{path.relative_to(ROOT).as_posix()}"
    parts = path.relative_to(RESULTS).parts
    if parts[-1] == "README.md":
        return "/".join(("results", *parts[:-1])) + ".md"
    # index.html is the leaderboard that `compare` wrote; the README is the folder's index.
    name = "leaderboard.html" if parts[-1] == "index.html" else parts[-1]
    return "/".join(("results", *parts[:-1], name))


def repository_file(source: Path, target: str) -> Path | None:
    """Return the file of the repository that a link leads to; None for a folder without a README."""
    path = (source.parent / target).resolve()
    if path.is_dir():
        path = path / "README.md"
    return path if path.is_file() and path.is_relative_to(ROOT) else None


def linked_files() -> dict[Path, str]:
    """Return the files outside docs/ that the site needs, with their site paths.

    They are those that a document or a linked Markdown file links to, and the results.
    """
    found: dict[Path, str] = {}
    queue = [*DOCS.rglob("*.md"), *RESULTS.glob("*/README.md")]
    while queue:
        source = queue.pop()
        if not source.is_relative_to(DOCS):
            found[source] = site_path(source)
        for match in LINK.finditer(source.read_text()):
            target = repository_file(source, match["target"])
            if target is None or target in found or target.is_relative_to(DOCS):
                continue
            found[target] = site_path(target)
            if target.suffix == ".md":
                queue.append(target)
    return found


def rewrite(markdown: str, source: Path) -> str:
    """Return the Markdown of `source` with links that hold between the site's sources."""
    here = Path(site_path(source)).parent

    def replace(match: re.Match[str]) -> str:
        target = repository_file(source, match["target"])
        if target is None:
            # A folder of the repository has no page; a link inside docs/ that leads nowhere is left to
            # `mkdocs build --strict`, which names it.
            return match["label"] if (source.parent / match["target"]).is_dir() else match[0]
        return f"{match['text']}({relpath(site_path(target), here)}{match['anchor'] or ''})"

    return outside_code(markdown, lambda text: LINK.sub(replace, text))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the parts of a document that are not fenced code."""
    parts = re.split(r"(^```.*?^```[^\S\n]*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else change(part) for part in parts)

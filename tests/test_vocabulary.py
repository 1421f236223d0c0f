"""Retired words: identifiers, configuration keys and user-facing text use the terms of docs/concepts.md."""

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("evalsuite", "tasks", "models", "distill", "reports", "tests")

RETIRED = {
    "journal": "response log, score file",
    "journals": "response logs, score files",
    "judge": "score, scorer",
    "judged": "scored",
    "judges": "scorers",
    "judging": "scoring",
    "ranked": "log-likelihood",
    "asked": "requested, evaluated",
    "asking": "plan, request",
    "licence": "license",
    "licences": "licenses",
    "shots": "num_fewshot",
    "centred": "chance-normalized",
    "deficit": "drop",
    "deficits": "drops",
    "mended": "fixed",
    "mend": "fix",
    "neighbours": "other rows of the batch",
    "trunk": "prefix, base student",
    "trunks": "prefixes",
    "beside": "with, next to, compared with",
}
"""Word → what replaces it. Whole words of text, and parts of identifiers between underscores and capitals."""

IDENTIFIERS = {"twin": "pair"}
"""Retired in names only: in prose they are ordinary English."""

ALLOWED = {
    ("tests/test_vocabulary.py", None),
    ("distill/selection/options.py", "trunk"),
    # Places in an order, not a protocol.
    ("reports/analysis/averages.py", "ranked"),
    ("reports/analysis/rows.py", "ranked"),
    ("reports/analysis/gaps.py", "ranked"),
    ("reports/analysis/warnings.py", "ranked"),
    ("tests/reports/analysis/test_incomplete_runs.py", "ranked"),
    # Words of the pocket world's texts, which are data.
    ("tasks/synthetic/pocket/niah.py", "asked"),
    ("tasks/synthetic/pocket/lexicon.py", "judge"),
}
"""(file, word) pairs that keep a word for a reason; None allows every word of the file."""

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def allowed(path: Path, word: str) -> bool:
    name = str(path.relative_to(ROOT))
    return (name, None) in ALLOWED or (name, word) in ALLOWED


def python_files() -> Iterator[Path]:
    for room in ROOMS:
        yield from (path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts)


def has_any(source: str, words: Iterable[str]) -> bool:
    """Whether any of these words may stand in a text: reading its tokens takes longer."""
    source = source.lower()
    return any(word in source for word in words)


def parts(identifier: str) -> set[str]:
    """Lower-case words of an identifier: `read_askedFor` gives read, asked, for."""
    return {part.lower() for part in WORD.findall(identifier)}


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Every identifier of a module, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """What a person reads, if a retired word may be in it: strings, docstrings and comments, or lines."""
    source = path.read_text()
    if not has_any(source, RETIRED):
        return
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def documents() -> Iterator[Path]:
    """Configuration, templates and documentation that we write; results are data."""
    for folder, folders, files in os.walk(ROOT):
        # In place: environments have a hundred thousand files.
        folders[:] = [each for each in folders if each[0] != "." and each not in ("runs", "build", "samples")]
        for name in files:
            is_ours = name == "Makefile" or name.endswith((".md", ".yaml", ".yml", ".j2", ".js", ".toml"))
            if is_ours and name[0] != "." and name not in ("CHANGELOG.md", "LICENSE"):
                yield Path(folder, name)


def test_no_identifier_uses_a_retired_word() -> None:
    retired = RETIRED | IDENTIFIERS
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} ({word} → {retired[word]})"
        for path in python_files()
        if has_any(path.read_text(), retired)
        for line, name in names(path)
        for word in sorted(parts(name) & set(retired))
        if not allowed(path, word)
    ]
    assert not found, "\n".join(found)


def test_no_module_is_named_by_a_retired_word() -> None:
    found = [path for path in python_files() if parts(path.stem) & set(RETIRED | IDENTIFIERS)]
    assert not [path for path in found if not allowed(path, path.stem)]


@pytest.mark.parametrize("kind", ["python", "documents"])
def test_no_text_uses_a_retired_word(kind: str) -> None:
    paths = python_files() if kind == "python" else documents()
    pattern = re.compile(r"\b(" + "|".join(RETIRED) + r")\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match.group(0)} (→ {RETIRED[match.group(0).lower()]})"
        for path in paths
        for line, text in texts(path)
        for match in pattern.finditer(text)
        if not allowed(path, match.group(0).lower())
    ]
    assert not found, "\n".join(found)


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def who_asked():\n    """Judge it."""\n    return 1  # ranked\n')
    assert any("asked" in parts(name) for _, name in names(module))
    assert {text for _, text in texts(module)} == {"Judge it.", "# ranked"}

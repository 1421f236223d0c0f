"""Question texts for a report's drill-down, read from the documents that a run keeps."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.evaluator.layout import documents_path, read_documents

# Columns that hold the question itself, in the order in which one is looked for.
COLUMNS = ("prompt", "question", "Question", "ctx", "sentence", "goal", "text", "input", "problem")


def question_text(row: Mapping[str, Any]) -> str:
    """Return the text of a document: the column that asks, or the whole row as JSON."""
    for column in COLUMNS:
        if isinstance(row.get(column), str):
            return str(row[column])
    return json.dumps(dict(row), ensure_ascii=False)


def questions_of(runs: Sequence[Path]) -> Callable[[str, Sequence[str]], Mapping[str, str]]:
    """Return a lookup (benchmark, doc_ids) → doc_id → text over the documents of `runs`.

    A document that no run keeps is left out. Raises DataError, when called, for a torn document file.
    """

    def find(benchmark: str, doc_ids: Sequence[str]) -> dict[str, str]:
        wanted = set(doc_ids)
        found: dict[str, str] = {}
        for run in runs:
            if documents_path(run, benchmark).is_file():
                for document in read_documents(run, benchmark):
                    if document.doc_id in wanted:
                        found[document.doc_id] = question_text(document.row)
        return found

    return find

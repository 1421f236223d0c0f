"""Question texts for a report's drill-down, joined by doc_id from local data or from the run's own documents.

Reports know documents by their hashes alone. Nothing here imports torch, so that a leaderboard with question
texts is rebuilt on a laptop.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, DataError, read_jsonl

# Columns that hold the question itself, in the order in which one is looked for.
COLUMNS = ("prompt", "question", "Question", "ctx", "sentence", "goal", "text", "input", "problem", "page")
LISTS = ("choices", "mc1_targets", "endings")
SETS = (("A", "B", "C", "D"), ("sol1", "sol2"), ("option1", "option2"))


def question_text(row: Mapping[str, Any]) -> str:
    """Return the text of a document: the column that asks, and its choices; or the whole row as JSON."""
    for column in COLUMNS:
        if isinstance(row.get(column), str):
            lettered = [f"{chr(65 + i)}. {text}" for i, text in enumerate(choices_of(row))]
            return "\n".join([str(row[column]).strip(), *lettered])
    return json.dumps(dict(row), ensure_ascii=False)


def choices_of(row: Mapping[str, Any]) -> list[str]:
    """Return the choices of a document in their order; none if it has none, or too many letters."""
    found: list[Any] = []
    for name in LISTS:
        value = row.get(name)
        if isinstance(value, Mapping):
            value = value.get("text", value.get("choices"))
        if isinstance(value, list):
            found = value
            break
    else:
        for names in SETS:
            if all(name in row for name in names):
                found = [row[name] for name in names]
                break
    return [str(each).strip() for each in found] if len(found) <= 26 else []


class Questions:
    """A lookup (benchmark, doc_ids) → doc_id → text; `missing` says afterwards what it could not find."""

    def __init__(self, runs: Sequence[Path], data_dir: Path | str | None = None) -> None:
        """Join from `data_dir` where it is given, and from the documents that `runs` keep for the rest.

        Generated questions (pocket, RULER) are in no data; they come from the runs alone.

        Args:
            runs: run folders.
            data_dir: frozen data; None uses the runs alone.

        Raises:
            DataError: there is no such data folder.
        """
        self.runs = [Path(run) for run in runs]
        self.data_dir = data_dir
        self.missing: dict[str, str] = {}
        """Benchmark → why some of its questions have no text."""
        if data_dir is not None:
            from evalsuite.tasks.data import open_source

            open_source(data_dir)

    def __call__(self, benchmark: str, doc_ids: Sequence[str]) -> dict[str, str]:
        """Return the texts that are known. Raises DataError for a torn file of documents."""
        wanted = set(doc_ids)
        found, why = self._from_data(benchmark, wanted)
        for run in self.runs:
            path = run / "documents" / f"{benchmark}.jsonl"
            if len(found) < len(wanted) and path.is_file():
                for document in read_jsonl(path):
                    key, row = document.get("doc_id"), document.get("row")
                    if isinstance(row, dict) and key in wanted - found.keys():
                        found[str(key)] = question_text(row)
        if len(found) < len(wanted):
            lacking = f"{len(wanted) - len(found)} of {len(wanted)} questions have no text"
            self.missing[benchmark] = f"{lacking}: {why or 'the run keeps no documents'}"
        return found

    def _from_data(self, benchmark: str, wanted: set[str]) -> tuple[dict[str, str], str]:
        """Texts by doc_id, and why there are not more."""
        if self.data_dir is None:
            return {}, ""
        from evalsuite.tasks.benchmark import load_benchmark
        from evalsuite.tasks.documents import documents

        try:
            known = load_benchmark(benchmark)
            if known.generated is not None:
                return {}, "they are generated, and the run keeps no documents"
            rows = documents(known, data_dir=self.data_dir)
        except (ConfigError, DataError) as error:
            return {}, str(error)
        found = {each.doc_id: question_text(each.row) for each in rows if each.doc_id in wanted}
        return found, f"{self.data_dir} holds other documents of {benchmark}"

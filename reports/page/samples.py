"""Samples of a report next to its page: every document with every response, in shards that load on demand.

A cell (benchmark and protocol) has an index, with scores and outcomes of all documents, and shards with their
expected answers and responses. Both are script files that hand base64 of gzipped JSON to the page, because
browsers load scripts, but no data, from disk. Responses and log-probabilities come from the score rows;
document texts are joined from local data on request, and redacted pages have none.
"""

import base64
import gzip
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import write_text
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.records.score_files import open_score_file, parse_detail, score_paths
from evalsuite.reports.report import Report

FOLDER = "samples"
RESPONSES_PER_SHARD = 8000
"""Responses of one shard, over all checkpoints; a few hundred kB of gzip."""
MAX_RESPONSE = 2000
"""Characters to which responses are cut."""
MAX_RESPONSE_REDACTED = 240
MAX_QUESTION = 4000

Questions = Callable[[str, Sequence[str]], Mapping[str, str]]
"""(benchmark, doc_ids) → {doc_id: document text}; unknown documents are left out."""
Key = tuple[int, str, int]
"""Context (-1 for none), document and seed of a row."""


@dataclass(frozen=True, slots=True)
class SampleCell:
    """One benchmark under one protocol whose samples are next to the page."""

    benchmark: str
    title: str
    protocol: str
    is_lower_better: bool
    rows: int

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.benchmark}.{self.protocol}"


def write_samples(
    report: Report, out: Path, questions: Questions | None = None, *, redacted: bool = False
) -> tuple[SampleCell, ...]:
    """Write the samples of a report and remove those of an earlier one.

    Args:
        report: its checkpoints and benchmarks are written.
        out: folder of the page; files go to `<out>/samples/<benchmark>.<protocol>[.<shard>].js`.
        questions: looks up document texts; None leaves them out.
        redacted: cut responses to `MAX_RESPONSE_REDACTED` characters.

    Raises:
        RunFolderError: the folder cannot be written.
        DataError: invalid score files.
    """
    folder = Path(out) / FOLDER
    written: set[Path] = set()
    cells = []
    index = {member: i for i, each in enumerate(report.checkpoints) for member in each.members}
    limit = MAX_RESPONSE_REDACTED if redacted else MAX_RESPONSE
    for benchmark in report.benchmarks:
        for protocol, how in benchmark.protocols.items():
            found = _responses(
                report.tensor.merged.runs, (benchmark.name, protocol), index, how.metric, limit
            )
            if not found:
                continue
            keys = sorted({key for each in found.values() for key in each})
            cell = SampleCell(benchmark.name, benchmark.title, protocol, how.direction == "lower", len(keys))
            texts: Mapping[str, str] = {}
            if questions is not None:
                texts = questions(benchmark.name, sorted({document for _, document, _ in keys}))
            for name, content in _files(cell, keys, found, texts):
                path = folder / f"{name}.js"
                write_text(path, f'evalsuiteSamples("{name}","{_packed(content)}")\n')
                written.add(path)
            cells.append(cell)
    remove_samples(out, written)
    return tuple(cells)


def remove_samples(out: Path, but: Collection[Path] = ()) -> tuple[SampleCell, ...]:
    """Remove the samples of an earlier report, all but some; return that there are none."""
    for path in (Path(out) / FOLDER).glob("*.js"):
        if path not in but:
            path.unlink()
    return ()


def _responses(
    runs: Sequence[Path],
    place: tuple[str, str],
    index: Mapping[tuple[str, str], int],
    metric: str,
    limit: int,
) -> dict[int, dict[Key, dict[str, Any]]]:
    """Checkpoint → row → its score, outcome and response."""
    found: dict[int, dict[Key, dict[str, Any]]] = {}
    for run in runs:
        for path in score_paths(run, *place):
            table = open_score_file(path)[0].read()
            names = ["weights_id", "fingerprint", "context", "doc_id", "seed", "outcome", "error", "detail"]
            names += [f"value.{metric}", f"choice.{metric}"]
            absent = [None] * table.num_rows
            columns = [table[name].to_pylist() if name in table.column_names else absent for name in names]
            for weights, engine, context, document, seed, outcome, error, detail, value, choice in zip(
                *columns, strict=True
            ):
                checkpoint = index.get((weights, engine))
                if checkpoint is None:
                    continue
                response = _response(parse_detail(detail, f"{path}, document {document}"), choice, limit)
                response["value"] = None if value is None else round(value, 4)
                if outcome != OUTCOMES[0]:
                    response["outcome"] = outcome
                if error:
                    response["text"] = _cut(error, limit)
                key = (-1 if context is None else context, document, seed)
                found.setdefault(checkpoint, {})[key] = response
    return found


def _response(detail: Mapping[str, Any], choice: int | None, limit: int) -> dict[str, Any]:
    """A response as the page shows it: text, extracted answer, choice, log-probabilities, expected answer.

    A choice that is unknown is not shown: the most likely one may contradict the score.
    """
    found: dict[str, Any] = {}
    if "response" in detail:
        found["text"] = _cut(str(detail["response"]), limit)
        if detail.get("extracted"):
            found["extracted"] = _cut(str(detail["extracted"]), limit)
    if isinstance(logprobs := detail.get("logprobs"), list) and logprobs:
        found["logprobs"] = [round(float(value), 2) for value in logprobs]
    if choice is not None:
        found["choice"] = choice
    gold = detail.get("gold")
    if isinstance(gold, int) and not isinstance(gold, bool):
        found["gold"] = gold
    if "target" in detail:
        target = detail["target"]
        found["expected"] = _cut(
            " | ".join(map(str, target)) if isinstance(target, list) else str(target), limit
        )
    return found


def _files(
    cell: SampleCell,
    keys: Sequence[Key],
    found: Mapping[int, Mapping[Key, dict[str, Any]]],
    texts: Mapping[str, str],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of the index and of every shard."""
    checkpoints = sorted(found)
    size = max(10, RESPONSES_PER_SHARD // len(checkpoints))
    index: dict[str, Any] = {
        "documents": [document for _, document, _ in keys],
        "shard": size,
        "checkpoints": checkpoints,
        "values": [[found[c].get(key, {}).get("value") for key in keys] for c in checkpoints],
        "choices": [[found[c].get(key, {}).get("choice") for key in keys] for c in checkpoints],
        "outcomes": [
            {
                at: found[c][key]["outcome"]
                for at, key in enumerate(keys)
                if "outcome" in found[c].get(key, {})
            }
            for c in checkpoints
        ],
    }
    if any(context >= 0 for context, _, _ in keys):
        index["contexts"] = [context for context, _, _ in keys]
    if len({seed for _, _, seed in keys}) > 1:
        index["seeds"] = [seed for _, _, seed in keys]
    yield cell.name, index
    for number, start in enumerate(range(0, len(keys), size)):
        rows = []
        for key in keys[start : start + size]:
            responses = [found[c].get(key) for c in checkpoints]
            row: dict[str, Any] = {"responses": [_detail(each) for each in responses]}
            for name in ("gold", "expected"):
                known = (each[name] for each in responses if each is not None and name in each)
                if (value := next(known, None)) is not None:
                    row[name] = value
            if (question := texts.get(key[1])) is not None:
                row["question"] = _cut(question, MAX_QUESTION)
            rows.append(row)
        yield f"{cell.name}.{number}", {"rows": rows}


def _detail(response: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the index does not have."""
    if response is None:
        return None
    return {name: response[name] for name in ("text", "extracted", "logprobs") if name in response}


def _packed(value: Any) -> str:
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"

"""Documents behind a table cell: at most twenty on which a student and its teacher disagree.

Responses and log-probabilities come from the score rows. Question texts are joined from local data on
request; redacted pages have none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.gaps import ProtocolPair, protocol_pairs_of
from evalsuite.reports.analysis.result_tensor import Cell, ResultTensor
from evalsuite.reports.records.score_files import read_rows

MAX_DOCUMENTS = 20
QUESTION_CHARACTERS = 1000
RESPONSE_CHARACTERS = 320

Questions = Callable[[str, Sequence[str]], Mapping[str, str]]
"""(benchmark, doc_ids) → {doc_id: question text}; unknown documents are left out."""


@dataclass(frozen=True, slots=True)
class RowRef:
    """Location of one score row."""

    score_file: int
    row: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One document shown in one drill-down."""

    cell: Cell
    document: int
    seed: int
    student: int
    teacher: int | None
    loglikelihood: tuple[Cell, int] | None = None
    """For a gap: the log-likelihood cell and the index of the document in it."""


def drill_downs(
    tensor: ResultTensor, questions: Questions | None = None, most: int = MAX_DOCUMENTS
) -> dict[str, Any]:
    """Contents of the page's dialogs: key of a table cell → its documents.

    Keys are `subject|benchmark|protocol|context` (context empty for none, `*` for all of a benchmark's)
    and `gap|subject|benchmark|context`.

    Args:
        panel: the scores.
        questions: looks up question texts; None leaves them out.
        most: documents per table cell.
    """
    picks: dict[str, list[Sample]] = {}
    totals: dict[str, dict[str, int]] = {}
    for cell in tensor.cells:
        for checkpoint in cell.present:
            key = f"{checkpoint}|{cell.benchmark.name}|{cell.protocol}|{cell.context or ''}"
            teacher = tensor.checkpoints[checkpoint].teacher
            picks[key], totals[key] = _disagreements(cell, checkpoint, cell.row(teacher), teacher, most)
    for pair in protocol_pairs_of(tensor):
        for checkpoint, plan in enumerate(tensor.checkpoints):
            if plan.teacher is None or not _in_both(pair, checkpoint):
                continue
            key = f"gap|{checkpoint}|{pair.loglikelihood.benchmark.name}|{pair.loglikelihood.context or ''}"
            picks[key], totals[key] = _lost_in_generation(pair, checkpoint, plan.teacher, most)
    _merge_contexts(tensor, picks, totals, most)
    rows = _look_up(tensor, [pick for each in picks.values() for pick in each])
    texts = _texts(picks, questions)
    return {
        key: totals[key] | {"documents": [_shown(pick, rows, texts) for pick in chosen]}
        for key, chosen in picks.items()
    }


def _in_both(pair: ProtocolPair, checkpoint: int) -> bool:
    return checkpoint in pair.loglikelihood.present and checkpoint in pair.generation.present


def _disagreements(
    cell: Cell, checkpoint: int, teacher_row: int | None, teacher: int | None, most: int
) -> tuple[list[Sample], dict[str, int]]:
    """Documents a student lost or won against its teacher; for a teacher, the documents it got wrong."""
    scores = cell.scores()
    mine = scores[cell.present.index(checkpoint)]
    sign = 1 if not cell.is_perplexity else -1
    if teacher_row is None:
        difference = sign * (mine - (1.0 if not cell.is_perplexity else mine.mean()))
    else:
        difference = sign * (mine - scores[teacher_row])
    lost, won = np.flatnonzero(difference < 0), np.flatnonzero(difference > 0)
    rng = np.random.default_rng(int(content_hash([cell.key, checkpoint]), 16))
    few = min(len(won), max(most - len(lost), most // 4))
    chosen = [*_some(lost, most - few, rng), *_some(won, few, rng)]
    picks = [
        Sample(cell, int(i), _worst_seed(cell, checkpoint, teacher_row, int(i)), checkpoint, teacher)
        for i in chosen
    ]
    return picks, {"of": len(cell.documents), "lost": len(lost), "won": len(won)}


def _lost_in_generation(
    pair: ProtocolPair, checkpoint: int, teacher: int, most: int
) -> tuple[list[Sample], dict[str, int]]:
    """Documents that a student gets right under log-likelihood and wrong under generation."""
    correct_loglikelihood, correct_generation = (scores >= 0.5 for scores in pair.scores(checkpoint))
    lost = np.flatnonzero(correct_loglikelihood & ~correct_generation)
    won = np.flatnonzero(~correct_loglikelihood & correct_generation)
    rng = np.random.default_rng(int(content_hash(["gap", pair.loglikelihood.key, checkpoint]), 16))
    picks = []
    for i in _some(lost, most, rng):
        position = int(pair.in_generation[i])
        seed = _worst_seed(pair.generation, checkpoint, None, position)
        at = (pair.loglikelihood, int(pair.in_loglikelihood[i]))
        picks.append(Sample(pair.generation, position, seed, checkpoint, teacher, at))
    return picks, {"of": pair.documents, "lost": len(lost), "won": len(won)}


def _some(positions: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    if len(positions) <= most:
        return positions
    return np.sort(rng.choice(positions, size=max(most, 0), replace=False))


def _worst_seed(cell: Cell, checkpoint: int, teacher_row: int | None, document: int) -> int:
    """Index of the seed with the largest loss against the teacher."""
    mine = cell.values[cell.present.index(checkpoint), :, document]
    other = 1.0 if teacher_row is None else cell.values[teacher_row, :, document]
    return int(np.argmin(mine - other))


def _merge_contexts(
    tensor: ResultTensor, picks: dict[str, list[Sample]], totals: dict[str, dict[str, int]], most: int
) -> None:
    """Add a drill-down over all contexts of a benchmark, for its column in the recovery table."""
    for cell in tensor.cells:
        if cell.context is None:
            continue
        for checkpoint in cell.present:
            combined = f"{checkpoint}|{cell.benchmark.name}|{cell.protocol}|*"
            if combined in picks:
                continue
            parts = [
                f"{checkpoint}|{c.benchmark.name}|{c.protocol}|{c.context}"
                for c in tensor.find(cell.benchmark.name, cell.protocol)
                if checkpoint in c.present
            ]
            share = max(1, most // len(parts))
            picks[combined] = [pick for part in parts for pick in picks[part][:share]]
            totals[combined] = {
                name: sum(totals[part][name] for part in parts) for name in ("of", "lost", "won")
            }


def _look_up(tensor: ResultTensor, picks: Sequence[Sample]) -> dict[tuple[int, int], dict[str, Any]]:
    """(file, row number) → score row; reads each file once."""
    wanted: dict[int, set[int]] = {}
    for pick in picks:
        for place in _places(pick):
            wanted.setdefault(place.score_file, set()).add(place.row)
    return {
        (score_file, number): row
        for score_file, numbers in wanted.items()
        for number, row in read_rows(tensor.score_files[score_file], numbers).items()
    }


def _place(cell: Cell, checkpoint: int, seed: int, document: int) -> RowRef:
    at = (cell.present.index(checkpoint), seed, document)
    return RowRef(int(cell.score_files[at]), int(cell.lines[at]))


def _places(pick: Sample) -> list[RowRef]:
    """Rows of the student, of the teacher if present, and, for a gap, of the student under log-likelihood."""
    places = [_place(pick.cell, pick.student, pick.seed, pick.document)]
    if pick.teacher is not None and pick.teacher in pick.cell.present:
        places.append(_place(pick.cell, pick.teacher, pick.seed, pick.document))
    if pick.loglikelihood is not None:
        cell, document = pick.loglikelihood
        places.append(_place(cell, pick.student, 0, document))
    return places


def _texts(picks: Mapping[str, Sequence[Sample]], questions: Questions | None) -> dict[tuple[str, str], str]:
    if questions is None:
        return {}
    wanted: dict[str, set[str]] = {}
    for chosen in picks.values():
        for pick in chosen:
            wanted.setdefault(pick.cell.benchmark.name, set()).add(str(pick.cell.documents[pick.document]))
    return {
        (benchmark, document): _cut(text, QUESTION_CHARACTERS)
        for benchmark, documents in wanted.items()
        for document, text in questions(benchmark, sorted(documents)).items()
    }


def _shown(
    pick: Sample, rows: Mapping[tuple[int, int], dict[str, Any]], texts: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    places = [rows[place.score_file, place.row] for place in _places(pick)]
    student = places[0]
    has_teacher = pick.teacher is not None and pick.teacher in pick.cell.present
    metric = pick.cell.plan.metric
    document = str(pick.cell.documents[pick.document])
    shown: dict[str, Any] = {
        "id": document,
        "expected": _expected(student),
        "student": _response(student, metric),
    }
    if has_teacher:
        shown["teacher"] = _response(places[1], metric)
    if pick.loglikelihood is not None:
        shown["loglikelihood"] = _response(places[-1], pick.loglikelihood[0].plan.metric)
        shown["expected"] = shown["expected"] or _expected(places[-1])
    if pick.cell.context is not None:
        shown["context"] = pick.cell.context
    if len(pick.cell.seeds) > 1:
        shown["seed"] = pick.cell.seeds[pick.seed]
    text = texts.get((pick.cell.benchmark.name, document))
    if text is not None:
        shown["question"] = text
    return shown


def _expected(row: Mapping[str, Any]) -> str:
    detail = row["detail"]
    if "target" in detail:
        target = detail["target"]
        return _cut(
            " | ".join(map(str, target)) if isinstance(target, list) else str(target), RESPONSE_CHARACTERS
        )
    gold = detail.get("gold")
    return _choice(gold) if isinstance(gold, int) and not isinstance(gold, bool) else ""


def _response(row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """One response: its text or the choice of the metric, score and outcome.

    A choice that is unknown is not shown: the most likely one may contradict the score.
    """
    detail = row["detail"]
    response: dict[str, Any] = {"value": round(float(row["values"].get(metric, 0.0)), 3)}
    if row["outcome"] != OUTCOMES[0]:
        response["outcome"] = row["outcome"]
    if row.get("error"):
        response["text"] = _cut(str(row["error"]), RESPONSE_CHARACTERS)
    if "response" in detail:
        response["text"] = _cut(str(detail["response"]), RESPONSE_CHARACTERS)
        if detail.get("extracted"):
            response["extracted"] = _cut(str(detail["extracted"]), RESPONSE_CHARACTERS)
        return response
    logprobs = detail.get("logprobs")
    if isinstance(logprobs, list) and logprobs:
        response["logprobs"] = [round(float(value), 2) for value in logprobs]
        gold = detail.get("gold")
        if len(logprobs) > 1 and isinstance(gold, int) and not isinstance(gold, bool):
            response["gold"] = gold
    if (choice := row["choices"].get(metric)) is not None:
        response["text"] = _choice(choice)
    return response


def _choice(index: int) -> str:
    return f"choice {chr(65 + index)}" if 0 <= index < 26 else f"choice {index + 1}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"

"""The documents behind a cell: at most twenty on which a student and its teacher disagree.

Answers and choice log-probabilities come from the records. Question texts are not in them; they are joined
from local data when asked for, and never where a page is to be published.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.analysis.gaps import Twin, twins_of
from evalsuite.reports.panel import Cell, Panel
from evalsuite.reports.reading import read_lines
from evalsuite.reports.records import OUTCOMES

MOST = 20
QUESTION_LENGTH = 1000
ANSWER_LENGTH = 320

Questions = Callable[[str, Sequence[str]], Mapping[str, str]]
"""(benchmark, doc_ids) → doc_id → text of the question, as far as it is known."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One answer to look up: where it stands in the journals."""

    journal: int
    line: int


@dataclass(frozen=True, slots=True)
class Pick:
    """One document to show in one drill-down."""

    cell: Cell
    document: int
    seed: int
    student: int
    teacher: int | None
    ranked: tuple[Cell, int] | None = None
    """For a gap: the log-likelihood cell and the document's position in it."""


def drill_downs(panel: Panel, questions: Questions | None = None, most: int = MOST) -> dict[str, Any]:
    """What the page's dialogs show: key of a table cell → its documents.

    Keys are `subject|benchmark|protocol|context` (context empty for none, `*` for all of a benchmark's)
    and `gap|subject|benchmark|context`.

    Args:
        panel: the answers.
        questions: gives question texts; None leaves them out.
        most: documents per cell.
    """
    picks: dict[str, list[Pick]] = {}
    totals: dict[str, dict[str, int]] = {}
    for cell in panel.cells:
        for subject in cell.present:
            key = f"{subject}|{cell.benchmark.name}|{cell.protocol}|{cell.context or ''}"
            teacher = panel.subjects[subject].teacher
            picks[key], totals[key] = _disagreements(cell, subject, cell.row(teacher), teacher, most)
    for twin in twins_of(panel):
        for subject, plan in enumerate(panel.subjects):
            if plan.teacher is None or not _in_both(twin, subject):
                continue
            key = f"gap|{subject}|{twin.ranked.benchmark.name}|{twin.ranked.context or ''}"
            picks[key], totals[key] = _unwritten(twin, subject, plan.teacher, most)
    _merge_contexts(panel, picks, totals, most)
    rows = _look_up(panel, [pick for each in picks.values() for pick in each])
    texts = _texts(picks, questions)
    return {
        key: totals[key] | {"documents": [_shown(pick, rows, texts) for pick in chosen]}
        for key, chosen in picks.items()
    }


def _in_both(twin: Twin, subject: int) -> bool:
    return subject in twin.ranked.present and subject in twin.written.present


def _disagreements(
    cell: Cell, subject: int, teacher_row: int | None, teacher: int | None, most: int
) -> tuple[list[Pick], dict[str, int]]:
    """Documents a student lost or won against its teacher; for a teacher, documents it got wrong."""
    scores = cell.scores()
    mine = scores[cell.present.index(subject)]
    sign = 1 if not cell.is_perplexity else -1
    if teacher_row is None:
        difference = sign * (mine - (1.0 if not cell.is_perplexity else mine.mean()))
    else:
        difference = sign * (mine - scores[teacher_row])
    lost, won = np.flatnonzero(difference < 0), np.flatnonzero(difference > 0)
    rng = np.random.default_rng(int(content_hash([cell.key, subject]), 16))
    few = min(len(won), max(most - len(lost), most // 4))
    chosen = [*_some(lost, most - few, rng), *_some(won, few, rng)]
    picks = [
        Pick(cell, int(i), _telling_seed(cell, subject, teacher_row, int(i)), subject, teacher)
        for i in chosen
    ]
    return picks, {"of": len(cell.documents), "lost": len(lost), "won": len(won)}


def _unwritten(twin: Twin, subject: int, teacher: int, most: int) -> tuple[list[Pick], dict[str, int]]:
    """Documents that a student gets right when they are ranked and wrong when it writes."""
    ranked, written = twin.scores(subject)
    right_ranked, right_written = ranked >= 0.5, written >= 0.5
    lost = np.flatnonzero(right_ranked & ~right_written)
    won = np.flatnonzero(~right_ranked & right_written)
    rng = np.random.default_rng(int(content_hash(["gap", twin.ranked.key, subject]), 16))
    picks = []
    for i in _some(lost, most, rng):
        position = int(twin.in_written[i])
        seed = _telling_seed(twin.written, subject, None, position)
        at = (twin.ranked, int(twin.in_ranked[i]))
        picks.append(Pick(twin.written, position, seed, subject, teacher, at))
    return picks, {"of": twin.documents, "lost": len(lost), "won": len(won)}


def _some(positions: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    if len(positions) <= most:
        return positions
    return np.sort(rng.choice(positions, size=max(most, 0), replace=False))


def _telling_seed(cell: Cell, subject: int, teacher_row: int | None, document: int) -> int:
    """The seed in which the student does worst beside its teacher."""
    mine = cell.answers[cell.present.index(subject), :, document]
    other = 1.0 if teacher_row is None else cell.answers[teacher_row, :, document]
    return int(np.argmin(mine - other))


def _merge_contexts(
    panel: Panel, picks: dict[str, list[Pick]], totals: dict[str, dict[str, int]], most: int
) -> None:
    """A benchmark with contexts also gets a drill-down over all of them, for its column in a table."""
    for cell in panel.cells:
        if cell.context is None:
            continue
        for subject in cell.present:
            whole = f"{subject}|{cell.benchmark.name}|{cell.protocol}|*"
            if whole in picks:
                continue
            parts = [
                f"{subject}|{c.benchmark.name}|{c.protocol}|{c.context}"
                for c in panel.find(cell.benchmark.name, cell.protocol)
                if subject in c.present
            ]
            share = max(1, most // len(parts))
            picks[whole] = [pick for part in parts for pick in picks[part][:share]]
            totals[whole] = {
                name: sum(totals[part][name] for part in parts) for name in ("of", "lost", "won")
            }


def _look_up(panel: Panel, picks: Sequence[Pick]) -> dict[tuple[int, int], dict[str, Any]]:
    """(journal, line) → record, each journal read once."""
    wanted: dict[int, set[int]] = {}
    for pick in picks:
        for place in _places(pick):
            wanted.setdefault(place.journal, set()).add(place.line)
    return {
        (journal, line): row
        for journal, lines in wanted.items()
        for line, row in read_lines(panel.journals[journal], lines).items()
    }


def _place(cell: Cell, subject: int, seed: int, document: int) -> Wanted:
    at = (cell.present.index(subject), seed, document)
    return Wanted(int(cell.journals[at]), int(cell.lines[at]))


def _places(pick: Pick) -> list[Wanted]:
    """Student, teacher if it answered, student's ranking for a gap."""
    places = [_place(pick.cell, pick.student, pick.seed, pick.document)]
    if pick.teacher is not None and pick.teacher in pick.cell.present:
        places.append(_place(pick.cell, pick.teacher, pick.seed, pick.document))
    if pick.ranked is not None:
        cell, document = pick.ranked
        places.append(_place(cell, pick.student, 0, document))
    return places


def _texts(picks: Mapping[str, Sequence[Pick]], questions: Questions | None) -> dict[tuple[str, str], str]:
    if questions is None:
        return {}
    wanted: dict[str, set[str]] = {}
    for chosen in picks.values():
        for pick in chosen:
            wanted.setdefault(pick.cell.benchmark.name, set()).add(str(pick.cell.documents[pick.document]))
    return {
        (benchmark, document): _cut(text, QUESTION_LENGTH)
        for benchmark, documents in wanted.items()
        for document, text in questions(benchmark, sorted(documents)).items()
    }


def _shown(
    pick: Pick, rows: Mapping[tuple[int, int], dict[str, Any]], texts: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    places = [rows[place.journal, place.line] for place in _places(pick)]
    student = places[0]
    has_teacher = pick.teacher is not None and pick.teacher in pick.cell.present
    metric = pick.cell.plan.metric
    document = str(pick.cell.documents[pick.document])
    shown: dict[str, Any] = {
        "id": document,
        "expected": _expected(student),
        "student": _answer(student, metric),
    }
    if has_teacher:
        shown["teacher"] = _answer(places[1], metric)
    if pick.ranked is not None:
        shown["ranked"] = _answer(places[-1], pick.ranked[0].plan.metric)
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
        return _cut(" | ".join(map(str, target)) if isinstance(target, list) else str(target), ANSWER_LENGTH)
    gold = detail.get("gold")
    return _choice(gold) if isinstance(gold, int) and not isinstance(gold, bool) else ""


def _answer(row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The answer of one checkpoint: what it said or chose, its value, how it ended."""
    detail = row["detail"]
    answer: dict[str, Any] = {"value": round(float(row["values"].get(metric, 0.0)), 3)}
    if row["outcome"] != OUTCOMES[0]:
        answer["outcome"] = row["outcome"]
    if "response" in detail:
        answer["text"] = _cut(str(detail["response"]), ANSWER_LENGTH)
        if detail.get("extracted"):
            answer["extracted"] = _cut(str(detail["extracted"]), ANSWER_LENGTH)
        return answer
    logprobs = detail.get("logprobs")
    if isinstance(logprobs, list) and logprobs:
        answer["logprobs"] = [round(float(value), 2) for value in logprobs]
        if len(logprobs) > 1:
            answer["text"] = _choice(int(np.argmax(logprobs)))
            gold = detail.get("gold")
            if isinstance(gold, int) and not isinstance(gold, bool):
                answer["gold"] = gold
    return answer


def _choice(index: int) -> str:
    return f"choice {chr(65 + index)}" if 0 <= index < 26 else f"choice {index + 1}"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"

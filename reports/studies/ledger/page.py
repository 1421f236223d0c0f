"""The page of the ledger, README.md, and `ledger.csv` with the same rows."""

from collections.abc import Sequence
from pathlib import Path

from evalsuite.foundation import write_csv, write_text
from evalsuite.reports.formatting import NOTHING, ends, interval_cells, parameters, plain, signed
from evalsuite.reports.markdown import escape, table
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.ledger.figures import KINDS, Kind
from evalsuite.reports.studies.ledger.recoveries import Row

_GAPS: tuple[Kind, ...] = ("recall", "generation")
_HEADER = [
    "student", "teacher", "size", "log-likelihood", "recall", "generation", "gap to recall",
    "gap to generation", "scores", "source",
]  # fmt: skip
_COLUMNS = """\
In percent: *recovery*, the student's macro average ÷ the teacher's over all benchmarks of a kind, or the
ratio that the source states. Recall is generated, too. *Gap*: recovery by log-likelihood − recovery by
the other kind, in points. *Size*: the teacher's. In parentheses: bounds over documents, never a paired
test. They allow both scores any value of their intervals (Wilson's, or by a printed standard error; 97.5
% each), and so hold at 95 % however student and teacher depend, but are wider than a paired interval and
do not cover repeated training. Without bounds: the source states neither an error nor documents of which
the score is the mean. *Scores*: `printed` by the authors; `printed average`, in a log without samples;
`evalsuite`, measured here."""
_FILES = """\
`reports/studies/ledger/conversions.csv` has all figures as printed, `ledger.csv` this table.
`--averages` adds [averages of lm-eval's logs](../../../docs/how-to/import.md#averages-without-samples).

```
python -m evalsuite.reports.studies.ledger --out reports/results/ledger
```"""


def write_page(rows: Sequence[Row], out: Path) -> Path:
    """Write README.md and ledger.csv; return the page."""
    cells = [_cells(row) for row in rows]
    write_csv(out / "ledger.csv", cells[0], (row.values() for row in cells))
    sections = [
        "# Linearized models: what their printed scores say",
        _summary(rows),
        table(_HEADER, [_line(row) for row in rows]),
        _COLUMNS,
        "## Notes",
        _notes(rows),
        "## Files and command",
        _FILES,
    ]
    page = out / "README.md"
    write_text(page, "\n\n".join(sections) + "\n")
    return page


def _summary(rows: Sequence[Row]) -> str:
    """Three sentences: what the table shows, and what it cannot."""
    both = [row for row in rows if row.gap("recall") is not None]
    text = f"{len(both)} of {len(rows)} students have figures of log-likelihood and of recall"
    if both:
        low, high = ([row.recoveries[kind].point for row in both] for kind in ("loglikelihood", "recall"))
        text += (
            f": they recover {plain(min(low), 0)} to {plain(max(low), 0)} % by log-likelihood and "
            f"{plain(min(high), 0)} to {plain(max(high), 0)} % by recall"
        )
    return (
        f"{text}. Scores are printed averages of several harnesses, unpaired and mostly of single runs: no "
        "difference between rows can be tested, and rows with other benchmarks cannot be compared. Chance is "
        "not subtracted: guessing recovers a large part of a multiple-choice score but no needle, which "
        "widens every gap."
    )


def _line(row: Row) -> list[str]:
    first, gaps = row.figures[0], [row.gap(kind) for kind in _GAPS]
    return [
        escape(first.model),
        escape(first.teacher),
        parameters(round(first.parameters * 1e6)) or NOTHING,
        *(_text(row.recoveries.get(kind)) for kind in KINDS),
        *(NOTHING if gap is None else signed(gap) for gap in gaps),
        first.origin,
        escape(row.sources),
    ]


def _text(found: Interval | None) -> str:
    if found is None:
        return NOTHING
    bounds = ends(found.low, found.high, plain)
    return plain(found.point) + (f" ({bounds})" if bounds != "no bounds" else "")


def _notes(rows: Sequence[Row]) -> str:
    """Notes on figures, each once, and the figures that an average of the table counts already."""
    notes: dict[str, list[str]] = {}
    for figure in (figure for row in rows for figure in row.figures):
        where = f"{figure.source.partition(',')[0]}, {figure.benchmark}"
        if figure.note:
            notes.setdefault(figure.note, []).append(where)
        if figure.part_of and figure.student_score is not None and figure.teacher_score is not None:
            share = plain(100 * figure.student_score / figure.teacher_score)
            notes[f"{figure.model} recovers {share} %; {figure.part_of} contains it"] = [where]
    return "\n".join(
        f"- {escape('; '.join(dict.fromkeys(of)))}: {escape(text)}." for text, of in notes.items()
    )


def _cells(row: Row) -> dict[str, object]:
    first = row.figures[0]
    cells: dict[str, object] = {
        "student": first.model, "teacher": first.teacher, "parameters": round(first.parameters * 1e6) or None,
        "scores": first.origin, "source": row.sources,
    }  # fmt: skip
    for kind in KINDS:
        cells |= interval_cells(kind, row.recoveries.get(kind))
    return cells | {f"gap_{kind}": row.gap(kind) for kind in _GAPS}

"""The page of the study, README.md, and the CSV files that it names, from the findings on each teacher."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from evalsuite.foundation import write_csv, write_text
from evalsuite.reports.formatting import NOTHING, contrast, signed
from evalsuite.reports.markdown import escape, table
from evalsuite.reports.studies.decision import contamination
from evalsuite.reports.studies.decision.analysis import (
    CLOSED,
    OPEN,
    PRIMARY,
    Findings,
    Lead,
    Row,
    claim,
    corrected,
)
from evalsuite.reports.studies.decision.effects import Effect
from evalsuite.reports.studies.decision.exploration import Order, Variant
from evalsuite.reports.studies.decision.objections import Study, objections
from evalsuite.reports.studies.decision.protocol import Protocol, control

HALVES = {OPEN: "exploratory", CLOSED: "held-out"}
_CROSSED = ("generated", "inside", "outside")


def write_page(
    protocol: Protocol, findings: Sequence[Findings], out: Path, earlier: Sequence[Findings] = ()
) -> Path:
    """Write README.md, and the tables as CSV files; return the page.

    `earlier` are the findings on the exploratory half, with which a page of the held-out one compares.
    """
    rows = corrected(protocol, findings)
    _write_tables(findings, rows, out)
    before = corrected(protocol, earlier)
    if earlier:
        _write_csv(out / f"contrasts-{earlier[0].half}.csv", [_contrast_cells(row) for row in before])
    page = out / "README.md"
    write_text(page, "\n\n".join(_sections(protocol, findings, rows, before, out)) + "\n")
    return page


def _write_tables(findings: Sequence[Findings], rows: Sequence[Row], out: Path) -> None:
    _write_csv(out / "contrasts.csv", [_contrast_cells(row) for row in rows])
    _write_csv(
        out / "leads.csv", [{"teacher": each.name} | asdict(lead) for each in findings for lead in each.leads]
    )
    shares = [share for each in findings for share in each.shares]
    _write_csv(out / "shares.csv", [share.run._asdict() | _without(asdict(share), "run") for share in shares])
    _write_csv(out / "unfound.csv", [row._asdict() for each in findings for row in each.explored.unfound])
    _write_csv(
        out / "variants.csv", [_variant_cells(row) for each in findings for row in each.explored.variants]
    )
    _write_csv(out / "orders.csv", [_variant_cells(row) for each in findings for row in each.explored.orders])
    _write_csv(out / "noise.csv", [row._asdict() for each in findings for row in each.noise])
    choices = [(each.name, choice) for each in findings for choice in each.choices]
    _write_csv(
        out / "choices.csv",
        [
            {"teacher": name} | choice.run._asdict() | _without(choice._asdict(), "run")
            for name, choice in choices
        ],
    )


def _sections(
    protocol: Protocol, findings: Sequence[Findings], rows: Sequence[Row], before: Sequence[Row], out: Path
) -> list[str]:
    half = findings[0].half
    sections = [
        "# Does log-likelihood hide what generation and recall lose?",
        _verdict(protocol, findings, rows) + _cost_of_choice(findings),
        f"Needles of the {HALVES[half]} half. Of each teacher's lead over chance, students keep a share by "
        "every way of measuring; a contrast is the share by the second way minus that by the first, in "
        "points: above 0 the first loses more. Intervals (95 %) and p-values are over runs and documents; p "
        "is Holm's, over "
        "the contrasts of both teachers within a family, and contrasts with p < .05 are bold.",
        _summary(protocol, findings, rows),
        _ways(protocol),
        *_choices(findings),
        *_orders(findings),
        *_both_halves(protocol, findings, rows, before),
    ]
    for each in findings:
        own = [row for row in rows if row.teacher == each.name]
        sections += [
            f"## {each.teacher.title}",
            f"{len(each.runs)} of {len(each.runs) + len(each.missing)} runs.{_missing(each)}",
            "### Contrasts",
            "*Detectable* is the smallest contrast that so many runs find with the power of the protocol, at "
            "the spread that was found.",
            _contrasts(own, lambda row: row.effect),
            "Only the cells in which the family keeps between 5 and 95 % by one of the two ways:",
            _contrasts(own, lambda row: row.between),
            "### What students keep",
            *_kept(each),
            *_explored(each),
            "### What the teacher can do",
            _leads(each.leads),
            *(
                [
                    "\n".join(
                        f"- `{task}` is not counted: {escape(why)}." for task, why in each.unmeasured.items()
                    )
                ]
                if each.unmeasured
                else []
            ),
        ]
    answered = [list(pair) for pair in objections(Study(protocol, findings, rows))]
    sections += [
        "## Objections",
        table(["objection", "answer"], answered),
        *contamination.section(protocol, out),
        "## Amendments",
        "\n".join(f"- {text}" for text in protocol.amendments),
        "## How it was computed",
        "\n".join(f"- {each.teacher.title}: {each.origin}" for each in findings),
        _recompute(protocol, findings),
    ]
    return sections


def _summary(protocol: Protocol, findings: Sequence[Findings], rows: Sequence[Row]) -> str:
    """One line a contrast: its question, and what primary families of each teacher show."""
    places = [(each, family) for family in PRIMARY for each in findings]
    lines = [
        [
            f"`{name}`",
            " − ".join(reversed(contrast.ways)),
            f"{contrast.question}?",
            *(_bold(_row(rows, each.name, family, name), protocol) for each, family in places),
        ]
        for name, contrast in protocol.contrasts.items()
    ]
    titles = [f"{family}, {each.teacher.title.partition(' (')[0]}" for each, family in places]
    return table(["contrast", "share by", "question", *titles], lines)


def _row(rows: Sequence[Row], teacher: str, family: str, contrast: str) -> Row | None:
    wanted = (teacher, family, contrast)
    return next((row for row in rows if (row.teacher, row.family, row.contrast) == wanted), None)


def _bold(row: Row | None, protocol: Protocol) -> str:
    if row is None or row.effect is None:
        return NOTHING
    found = _interval(row.effect)
    return f"**{found}**" if row.p_adjusted is not None and row.p_adjusted < protocol.power.alpha else found


def _orders(findings: Sequence[Findings]) -> list[str]:
    """Differences of two students that all of several teachers have."""
    by_measure: dict[tuple[str, ...], dict[str, str]] = {}
    for each in findings:
        for row in each.explored.orders:
            line = by_measure.setdefault((*row.students, row.of, row.way), {})
            line[each.name] = _interval(row.effect)
    lines = [
        [f"`{first}` − `{second}`", of.replace("_", " "), way, *(line[each.name] for each in findings)]
        for (first, second, of, way), line in by_measure.items()
        if len(line) == len(findings) > 1
    ]
    if not lines:
        return []
    return [
        "## Is the order of mixers the same?",
        "Explored, not in the protocol, and not corrected for the number of comparisons: the share that one "
        "student keeps minus that of another, in points of the teacher's lead, over runs and documents.",
        table(["students", "of", "way", *(each.teacher.title for each in findings)], lines),
    ]


def _both_halves(
    protocol: Protocol, findings: Sequence[Findings], rows: Sequence[Row], before: Sequence[Row]
) -> list[str]:
    """What the half that was looked at had shown, where it is not the one of the page."""
    lines = [
        [
            f"`{name}`",
            family,
            each.teacher.title,
            _bold(_row(before, each.name, family, name), protocol),
            _bold(_row(rows, each.name, family, name), protocol),
        ]
        for name, contrast in protocol.contrasts.items()
        for family in PRIMARY
        for each in findings
        if before and contrast.of == "needles"
    ]
    if not lines:
        return []
    return [
        "## Both halves",
        "The exploratory half was looked at while the analysis was written; the held-out half, with keys, "
        "values and haystacks of its own, was scored once, after the last run. Short and completion tasks "
        "have one half. All contrasts of the exploratory half: `contrasts-exploratory.csv`.",
        table(["contrast", "family", "teacher", "exploratory", "held-out"], lines),
    ]


def _recompute(protocol: Protocol, findings: Sequence[Findings]) -> str:
    lines = []
    for each in findings:
        lines += [
            f"evalsuite run {protocol.suite} \\\n"
            f"    --checkpoint TEACHER --data DATA --build-only --out runs/{each.name}",
            "evalsuite run --score-only \\\n"
            f"    --merge-shards reports/results/decision/{each.name}.tar.xz --out runs/{each.name}",
        ]
    runs = " ".join(f"--run {each.name}=runs/{each.name}" for each in findings)
    half = findings[0].half
    lines.append(
        f"python -m evalsuite.reports.studies.decision {runs} \\\n"
        f"    --half {half} --out reports/results/decision"
    )
    lines += [
        f"python -m tests.parity.decision_study {each.name} --run runs/{each.name} --half {half} \\\n"
        f"    --shards reports/results/decision/{each.name}.tar.xz --results reports/results/decision"
        for each in findings
    ]
    shards = ", ".join(f"`{each.name}.tar.xz`" for each in findings)
    return (
        "The last command computes all tables but `noise.csv` again with other code; what a constant answer "
        "scores, and which completion tasks count, it takes over. "
        f"All responses are in {shards}. "
        "Tables: `contrasts.csv`, `leads.csv`, `shares.csv`, `unfound.csv`, `variants.csv`, `noise.csv`, "
        "`choices.csv`, `orders.csv`."
        "\n\n```\n" + "\n".join(lines) + "\n```"
    )


def _verdict(protocol: Protocol, findings: Sequence[Findings], rows: Sequence[Row]) -> str:
    key = claim(protocol, rows, [row for each in findings for row in each.explored.variants])
    if not key:
        waiting = [
            teacher.title
            for name, teacher in protocol.teachers.items()
            if name not in {r.teacher for r in rows}
        ]
        return f"Not decided: {' and '.join(waiting)} has not been analysed yet."
    words = {
        "protocol_gap": "**Yes, by the protocol's rule**",
        "length_or_distractors": "**No: length or distractors, by the protocol's rule**",
        "otherwise": "**By the protocol's rule**",
    }
    return f"{words[key]}: {protocol.claims[key]}"


def _cost_of_choice(findings: Sequence[Findings]) -> str:
    """A sentence on regrets where the held-out half was opened; they are no claim of the protocol."""

    def regrets(each: Findings, start: str) -> list[float]:
        return [choice.regret for choice in each.choices if choice.measure.startswith(start)]

    short = {each.teacher.title: regrets(each, "short tasks, plain") for each in findings}
    needles = [regret for each in findings for regret in regrets(each, "needles")]
    if not needles or not all(short.values()):
        return ""
    lost = " and ".join(f"{max(values):.1f} points ({title})" for title, values in short.items())
    return (
        f" What short tasks choose finds {lost} fewer needles than the best run; what needles choose, by any "
        f"of the four ways, at most {max(needles):.1f} fewer."
    )


def _ways(protocol: Protocol) -> str:
    return "\n".join(f"- *{name}*: {way.means}." for name, way in protocol.ways.items())


def _missing(findings: Findings) -> str:
    if not findings.missing:
        return ""
    return " Missing: " + ", ".join(f"`{run.student}`, seed {run.seed}" for run in findings.missing) + "."


def _contrasts(rows: Sequence[Row], of: Callable[[Row], Effect | None]) -> str:
    lines = []
    for row in rows:
        found = of(row)
        whole = found is not None and found is row.effect
        detectable = f"{row.detectable:.1f}" if whole and row.detectable is not None else NOTHING
        p = f"{row.p_adjusted:.2g}" if whole and row.p_adjusted is not None else NOTHING
        family = row.family if row.family in PRIMARY else f"{row.family} (describes)"
        lines.append(
            [
                f"`{row.contrast}`",
                family,
                _interval(found) if found else (row.why or "no such cell"),
                p,
                detectable,
                f"{found.run_sd:.1f}" if found else NOTHING,
                str(len(found.cells)) if found else "0",
                str(found.runs) if found else NOTHING,
            ]
        )
    return table(
        ["contrast", "family", "points (95 %)", "p", "detectable", "SD of runs", "cells", "runs"], lines
    )


def _interval(found: Effect) -> str:
    return contrast(found.estimate, found.low, found.high)


def _kept(findings: Findings) -> list[str]:
    """Mean share by way, student and cell, admitted or not."""
    students = [*findings.teacher.students, *map(control, findings.teacher.untrained)]
    parts = []
    for of in dict.fromkeys(share.of for share in findings.shares):
        own = [share for share in findings.shares if share.of == of]
        ways = list(dict.fromkeys(share.way for share in own))
        lines = []
        for cell in dict.fromkeys(share.cell for share in own):
            for student in students:
                kept: Mapping[str, list[float]] = {
                    way: [
                        share.share
                        for share in own
                        if (share.cell, share.way, share.run.student) == (cell, way, student)
                    ]
                    for way in ways
                }
                if kept[ways[0]]:
                    counted = next(share.admitted for share in own if share.cell == cell)
                    name = cell if counted else f"*{cell}* (not counted)"
                    lines.append([name, f"`{student}`", *(f"{np.mean(kept[way]):.1f}" for way in ways)])
        title = {"needles": "Needles", "short_tasks": "Short tasks", "completion_tasks": "Completion tasks"}[
            of
        ]
        parts.append(
            f"{title}, percent of the teacher's lead, mean over runs:\n\n"
            f"{table(['cell', 'student', *ways], lines)}"
        )
    return parts


def _explored(findings: Findings) -> list[str]:
    """What is no part of the protocol."""
    found = findings.explored
    if not found.unfound:
        return []
    unfound = [[f"`{row.student}`", *(f"{value:.1f}" for value in row[2:])] for row in found.unfound]
    variants = [
        [
            f"`{row.contrast}`",
            ", ".join(f"`{student}`" for student in row.students),
            row.change or "one student alone",
            _interval(row.effect),
        ]
        for row in found.variants
    ]
    return [
        "### Explored, not in the protocol",
        "Percent of needles over the counted cells, not corrected for guessing. A share by *inside* supposes "
        "that a student which fails ranks the right value first in 25 % of documents. Where it is less, "
        "because it prefers a wrong value of the text, the share is too low, and a negative `protocol` is no "
        "evidence that generation loses less.",
        table(["student", *_CROSSED, *(f"{way}, not generated" for way in _CROSSED[1:])], unfound),
        "The contrasts by other definitions: a chance of 0 in *inside*, which is the other bound; without "
        "tasks where both protocols score the same; and of single students, whose intervals have two degrees "
        "of freedom.",
        table(["contrast", "students", "difference", "points (95 %)"], variants),
        "`distractors` by noise alone: normal noise on each of the teacher's log-likelihoods, as much as "
        "gives it the family's share by *outside*, lets its share by *inside* drop, too, because that "
        "question is harder. Where both contrasts are about the same, `distractors` says that *outside* is "
        "too easy to show a loss, and not that recall is lost in particular.",
        table(
            ["family", "found, points", "noise alone, points", "SD of the noise, nats"],
            [[row.family, signed(row.found), signed(row.noise), f"{row.sd:.1f}"] for row in findings.noise],
        ),
    ]


def _leads(leads: Sequence[Lead]) -> str:
    lines = [
        [
            lead.cell,
            lead.way,
            f"{lead.documents:,}",
            f"{100 * lead.chance:.1f}",
            f"{lead.lead:.1f}",
            f"{lead.low:.1f}",
            "counted" if not lead.why else escape(lead.why),
        ]
        for lead in leads
    ]
    return table(["cell", "way", "documents", "chance", "lead, points", "lower end", "decision"], lines)


def _choices(findings: Sequence[Findings]) -> list[str]:
    measures = {choice.measure: None for each in findings for choice in each.choices}
    if not measures:
        return []
    lines = []
    for measure in measures:
        line = [measure]
        for each in findings:
            choice = next(choice for choice in each.choices if choice.measure == measure)
            line += [
                f"`{choice.run.student}`, seed {choice.run.seed}",
                f"{choice.regret:.1f} ({choice.low:.1f} to {choice.high:.1f})",
            ]
        lines.append(line)
    titles = [each.teacher.title.partition(" (")[0] for each in findings]
    header = [text for title in titles for text in (f"student of {title}", "regret (95 %)")]
    return [
        "## Which student each measure chooses",
        "One run is chosen by its mean on the short tasks, by KL on held-out text, or by needles of the "
        "exploratory half. Regret: needles of the held-out half that the best run finds by generation, minus "
        "those of the chosen one, in points; its interval is over runs within students and documents.",
        table(["chosen by", *header], lines),
    ]


def _contrast_cells(row: Row) -> dict[str, object]:
    cells: dict[str, object] = {
        "teacher": row.teacher,
        "family": row.family,
        "contrast": row.contrast,
        "p_adjusted": row.p_adjusted,
        "detectable": row.detectable,
        "why": row.why,
    }
    for name, found in (("", row.effect), ("between_", row.between)):
        for key in ("estimate", "low", "high", "p", "run_sd", "document_error", "df", "runs"):
            cells[name + key] = None if found is None else getattr(found, key)
        cells[name + "cells"] = "" if found is None else "; ".join(found.cells)
    return cells


def _variant_cells(row: Variant | Order) -> dict[str, object]:
    cells = row._asdict() | {"students": " ".join(row.students)}
    return _without(cells, "effect") | {
        key: getattr(row.effect, key)
        for key in ("estimate", "low", "high", "p", "run_sd", "document_error", "df")
    }


def _without(values: Mapping[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in values.items() if key != name}


def _write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    if rows:
        write_csv(path, rows[0], (row.values() for row in rows))

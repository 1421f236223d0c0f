"""What can be held against a claim that log-likelihood hides a loss, and what this study has to say to it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from evalsuite.foundation import counted
from evalsuite.reports.studies.decision.analysis import CLOSED, NEEDLE_LEAD, PRIMARY, Findings, Row
from evalsuite.reports.studies.decision.exploration import SAME_BY_CONSTRUCTION
from evalsuite.reports.studies.decision.protocol import Protocol, control


class Study(NamedTuple):
    """The protocol, what was found on each teacher, and all contrasts."""

    protocol: Protocol
    findings: Sequence[Findings]
    rows: Sequence[Row]

    def by_teacher(self, text: Callable[[Findings], str]) -> str:
        """A text of each teacher, with its name if there are several."""
        if len(self.findings) == 1:
            return text(self.findings[0])
        return "; ".join(f"{each.teacher.title}: {text(each)}" for each in self.findings)


def objections(study: Study) -> list[tuple[str, str]]:
    """Objection and answer, each a sentence or two with the numbers of this study."""
    protocol = study.protocol
    tests = [row.p_adjusted for row in study.rows if row.p_adjusted is not None]
    detectable = [
        row.detectable for row in study.rows if row.detectable is not None and row.family in PRIMARY
    ]
    same = ", ".join(f"`{name}`" for name in SAME_BY_CONSTRUCTION)
    opened = all(each.half == CLOSED for each in study.findings)
    return [
        (
            "Documents that fit into a student's window can't show what the window loses.",
            "The teacher's own weights with windows, untrained, keep "
            + study.by_teacher(
                lambda each: (
                    f"{_kept(each, 'short_tasks', 'plain', _controls(each))} % of the lead on short tasks as "
                    f"they are and {_kept(each, 'short_tasks', 'padded', _controls(each))} % behind text"
                )
            )
            + ". `length` measures it for every student.",
        ),
        (
            "A benchmark that occurs twice counts twice.",
            f"A set of documents is one cell of a contrast. {same} is a short task and a completion task; "
            "`answers` without it is among the variants.",
        ),
        (
            "Needles had generation alone, short tasks log-likelihood, so that task and protocol are one.",
            "The same needles are scored in four ways. Pure students keep "
            + study.by_teacher(
                lambda each: ", ".join(
                    f"{_kept(each, 'needles', way, _family(each, 'pure'))} % ({way})" for way in protocol.ways
                )
            )
            + ".",
        ),
        (
            "A mean over tasks hides an exchange between them, and gains from training text.",
            "Shares stand cell by cell. Students of Gemma read prose alone; those of SmolLM2 also read "
            "questions, among them training splits of related tasks (QASC, GSM8K). What overlaps with the "
            "evaluated documents stands under Contamination.",
        ),
        (
            "The gap was shown on a teacher that had been tuned for the tasks.",
            "Both teachers are as published, but for the quantization of their files.",
        ),
        (
            "Of many gaps the largest was shown.",
            f"All {len(tests)} contrasts of all families stand here, with Holm's p over both teachers.",
        ),
        (
            "One run stands for a recipe.",
            "Intervals are over runs and documents: "
            + study.by_teacher(
                lambda each: (
                    f"{counted(len(each.runs), 'run')} of "
                    f"{counted(len({run.student for run in each.runs}), 'student')}"
                )
            )
            + ".",
        ),
        (
            "Needles had been looked at while students were designed.",
            "These have keys, numbers and essays of their own. "
            + (
                "The half that is shown was opened once, after the last run."
                if opened
                else "The held-out half has not been opened."
            ),
        ),
        (
            "Contexts lay beyond what the teacher reads.",
            f"The longest has {max(protocol.needles.contexts):,} tokens, and a cell counts only where the "
            f"teacher leads by {NEEDLE_LEAD:g} points in every way.",
        ),
        (
            "What is not decided could not have been.",
            f"The smallest contrasts that would have been found are {min(detectable):.1f} to "
            f"{max(detectable):.1f} points in the primary families."
            if detectable
            else "No contrast has a spread between runs.",
        ),
        (
            "A guesser recovers most of a raw score.",
            "Shares are of the lead over chance, of which a guesser keeps 0.",
        ),
    ]


def _controls(each: Findings) -> list[str]:
    return [control(name) for name in each.teacher.untrained]


def _family(each: Findings, family: str) -> list[str]:
    return [student for student, name in each.teacher.students.items() if name == family]


def _kept(each: Findings, of: str, way: str, students: Sequence[str]) -> str:
    """Mean share over admitted cells and runs, in percent; a dash if there is none."""
    shares = [
        share.share
        for share in each.shares
        if share.admitted and (share.of, share.way) == (of, way) and share.run.student in students
    ]
    return f"{np.mean(shares):.1f}" if shares else "–"

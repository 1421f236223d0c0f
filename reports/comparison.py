"""`compare`: build the report of one or more runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalsuite.foundation import write_text
from evalsuite.reports import measures
from evalsuite.reports.exports.compact_json import compact_json
from evalsuite.reports.exports.markdown import report_markdown
from evalsuite.reports.exports.redact import redact
from evalsuite.reports.exports.report_json import report_json
from evalsuite.reports.exports.terminal import leaderboard_text
from evalsuite.reports.gate.decide import INCONCLUSIVE, PASS, REGRESSION, UNMEASURED
from evalsuite.reports.gate.outputs import markdown as gate_markdown
from evalsuite.reports.gate.outputs import verdict_json, write_verdict
from evalsuite.reports.gate.policy import Policy
from evalsuite.reports.gate.run import apply_policy
from evalsuite.reports.gate.verdict import Verdict
from evalsuite.reports.measures.papers.tables import paper_tables, printed_scores, shipped_names
from evalsuite.reports.measures.students import PolicyVerdicts, policy_verdicts
from evalsuite.reports.measures.students import Verdict as StudentVerdict
from evalsuite.reports.page.render import render_page
from evalsuite.reports.page.samples import Questions, remove_samples, write_samples
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.references.printed import read_printed
from evalsuite.reports.report import Report, build_report

_WORDS: dict[str, StudentVerdict] = {
    PASS: "passes",
    REGRESSION: "fails",
    INCONCLUSIVE: "undecided",
    UNMEASURED: "not measured",
}
"""Outcome of the gate → verdict in the table of students."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of `compare`."""

    report: Report
    folder: Path
    files: tuple[Path, ...]
    verdict: Verdict | None = None
    """The gate's verdict, if a policy was given."""

    @property
    def markdown(self) -> str:
        """Contents of report.md."""
        return _markdown(self.report, self.verdict)

    @property
    def text(self) -> str:
        """The leaderboard and the verdict as plain text."""
        leaderboard = leaderboard_text(self.report)
        return leaderboard if self.verdict is None else f"{leaderboard.rstrip()}\n\n{self.verdict.text}\n"

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.folder / "index.html"


def compare(
    runs: Sequence[Path],
    out: Path,
    *,
    selection: RunSelection | None = None,
    questions: Questions | None = None,
    redacted: bool = False,
    policy: Policy | None = None,
    samples: bool = True,
    printed: Path | None = None,
) -> Comparison:
    """Build the report of finished or unfinished runs from their score rows.

    Writes index.html, report.md and report.json; a CSV of every table that has rows, and of every paper's
    table that shares a benchmark (papers/*.csv); samples/*.js, which the page loads on demand; with a policy
    also junit.xml, gate.md and gate.json. A stale CSV of an earlier call is removed. A measure of another
    package that breaks is left out, and a warning says why.

    Args:
        runs: run folders.
        out: folder for the report.
        selection: teacher, checkpoints, partial cells and errors; default: as the policy states, else as in
            the plans, complete cells only, and errors are wrong.
        questions: looks up question texts for the sample browser.
        redacted: leave out question texts and reduce absolute paths to their last component.
        policy: gate policy; adds its verdict to the report.
        samples: write the samples that the page loads on demand (`samples/*.js`).
        printed: CSV of scores from elsewhere, which the papers' tables list, see
            `evalsuite.reports.references.printed`.

    Raises:
        RunFolderError: a folder is no run folder, or `out` cannot be written.
        DataError: invalid score rows, or runs that configure one benchmark differently.
        ConfigError: a selected checkpoint is unknown, or the policy names a checkpoint that no run has.
    """
    report = build_report(list(runs), selection if policy is None else policy.select(selection))
    verdict = None if policy is None else apply_policy(report.tensor, policy)
    if redacted:
        report = redact(report)
    if verdict is not None:
        report = report.having(policy_verdicts, _of_students(verdict))
    if printed is not None:
        scores = read_printed(printed, {each.name for each in report.benchmarks})
        report = report.having(printed_scores, scores)
    out = Path(out)
    questions = None if redacted else questions
    tables, problems = measures.computed(report)
    report = report.with_(warnings=(*report.warnings, *problems))
    cells = write_samples(report, out, questions, redacted=redacted) if samples else remove_samples(out)
    texts = {
        **{f"{table.name}.csv": table.csv(report) for table in tables if table.is_written(report)},
        **{f"papers/{table.name}.csv": table.csv() for table in report.of(paper_tables)},
        "report.md": _markdown(report, verdict),
        "index.html": render_page(
            report,
            verdict,
            samples=cells,
            has_questions=questions is not None,
            redacted=redacted,
            tables=tables,
        ),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    # By name: other CSV files of the folder are the user's.
    ours = [f"{table.name}.csv" for table in tables] + [f"papers/{name}.csv" for name in shipped_names()]
    for name in ours:
        if name not in texts:
            (out / name).unlink(missing_ok=True)
    gated = {} if verdict is None else {"gate": verdict_json(verdict)}
    values = {**report_json(report, tables), "redacted": redacted, **gated}
    write_text(out / "report.json", compact_json(values))
    files = [out / name for name in (*texts, "report.json")]
    files += sorted((out / "samples").glob("*.js"))
    if verdict is not None:
        files += write_verdict(verdict, out)
    return Comparison(report, out, tuple(files), verdict)


def _of_students(verdict: Verdict) -> PolicyVerdicts | None:
    words = {label: _WORDS[outcome] for label, outcome in verdict.by_checkpoint.items()}
    return PolicyVerdicts(f"policy {verdict.policy}" if verdict.policy else "the policy", words)


def _markdown(report: Report, verdict: Verdict | None) -> str:
    return report_markdown(report) + ("" if verdict is None else f"\n{gate_markdown(verdict)}")

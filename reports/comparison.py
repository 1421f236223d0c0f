"""`compare`: runs in, leaderboards out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalsuite.foundation import write_json, write_text
from evalsuite.reports.gating.outputs import markdown as gate_markdown
from evalsuite.reports.gating.outputs import verdict_json, write_verdict
from evalsuite.reports.gating.policy import Policy
from evalsuite.reports.gating.verdict import Verdict, judge
from evalsuite.reports.json_form import report_json
from evalsuite.reports.markdown import report_markdown
from evalsuite.reports.outgoing import without_local_paths
from evalsuite.reports.page.render import render_page
from evalsuite.reports.page.samples import Questions
from evalsuite.reports.plain_text import leaderboard_text
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.tables import gap_csv, leaderboard_csv, published_csv, scores_csv


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` made."""

    report: Report
    folder: Path
    files: tuple[Path, ...]
    verdict: Verdict | None = None
    """What the gate says, where a policy was given."""

    @property
    def markdown(self) -> str:
        """What report.md holds."""
        return _markdown(self.report, self.verdict)

    @property
    def text(self) -> str:
        """The leaderboard for a terminal, and the verdict."""
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
    teacher: str | None = None,
    questions: Questions | None = None,
    published: bool = False,
    policy: Policy | None = None,
    least: float = 0.0,
) -> Comparison:
    """Rebuild everything from the records of finished (or unfinished) runs.

    Writes index.html, leaderboard.csv, scores.csv, gap.csv (where both protocols were asked), published.csv
    (where benchmarks are those of arXiv 2504.14366), report.md and report.json; with a policy also
    junit.xml, gate.md and gate.json. A gap.csv or published.csv of an earlier call does not stay.

    Args:
        runs: run folders.
        out: folder for the report.
        teacher: label or weights_id of the only teacher; default: as the plans say.
        questions: (benchmark, doc_ids) → doc_id → question text, for the drill-down.
        published: the page is to be published: it holds no question text whatever `questions` is, and of
            absolute paths the last part alone.
        policy: judge the students by it and show the verdict.
        least: leave a student out of benchmarks of which it answered less than this share of its teacher's
            documents.

    Raises:
        RunFolderError: a folder that is no run, or `out` cannot be written.
        DataError: records that are not sound, or runs that ask one benchmark differently.
        ConfigError: `teacher` names nothing, or the policy names a checkpoint that no run has.
    """
    report = build_report(list(runs), teacher, least)
    verdict = None if policy is None else judge(report.panel, policy)
    if published:
        report = without_local_paths(report)
    out = Path(out)
    texts = {
        "leaderboard.csv": leaderboard_csv(report),
        "scores.csv": scores_csv(report),
        **({"gap.csv": gap_csv(report)} if report.gaps else {}),
        **({"published.csv": published_csv(report)} if report.published else {}),
        "report.md": _markdown(report, verdict),
        "index.html": render_page(report, None if published else questions, verdict, published=published),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    for name in {"gap.csv", "published.csv"} - set(texts):
        (out / name).unlink(missing_ok=True)
    gated = {} if verdict is None else {"gate": verdict_json(verdict)}
    write_json(out / "report.json", {**report_json(report), "published": published, **gated})
    files = [out / name for name in (*texts, "report.json")]
    if verdict is not None:
        files += write_verdict(verdict, out)
    return Comparison(report, out, tuple(files), verdict)


def _markdown(report: Report, verdict: Verdict | None) -> str:
    return report_markdown(report) + ("" if verdict is None else f"\n{gate_markdown(verdict)}")

"""`compare`: runs in, leaderboards out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import write_json, write_text
from evalsuite.reports.json_form import report_json
from evalsuite.reports.markdown import report_markdown
from evalsuite.reports.page.render import render_page
from evalsuite.reports.page.samples import Questions
from evalsuite.reports.plain_text import leaderboard_text
from evalsuite.reports.report import Report, build_report
from evalsuite.reports.tables import gap_csv, leaderboard_csv, scores_csv


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` made."""

    report: Report
    folder: Path
    files: tuple[Path, ...]

    @property
    def markdown(self) -> str:
        """What report.md holds."""
        return report_markdown(self.report)

    @property
    def text(self) -> str:
        """The leaderboard for a terminal."""
        return leaderboard_text(self.report)

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
    verdict: Mapping[str, Any] | None = None,
) -> Comparison:
    """Rebuild everything from the records of finished (or unfinished) runs.

    Writes index.html, leaderboard.csv, scores.csv, gap.csv (where both protocols were asked), report.md and
    report.json.

    Args:
        runs: run folders.
        out: folder for the report.
        teacher: label or weights_id of the only teacher; default: as the plans say.
        questions: (benchmark, doc_ids) → doc_id → question text, for the drill-down.
        published: the page is to be published: question texts are left out whatever `questions` is.
        verdict: `Verdict.summary()` of a gate, to show on the page.

    Raises:
        RunFolderError: a folder that is no run, or `out` cannot be written.
        DataError: records that are not sound, or runs that ask one benchmark differently.
        ConfigError: `teacher` names nothing.
    """
    report = build_report(list(runs), teacher)
    out = Path(out)
    texts = {
        "leaderboard.csv": leaderboard_csv(report),
        "scores.csv": scores_csv(report),
        "gap.csv": gap_csv(report),
        "report.md": report_markdown(report),
        "index.html": render_page(report, None if published else questions, verdict),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    write_json(out / "report.json", report_json(report))
    return Comparison(report, out, tuple(out / name for name in (*texts, "report.json")))

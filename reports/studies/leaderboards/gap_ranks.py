"""Where the settings that README names stand among all settings of the gap studies.

    python -m evalsuite.reports.studies.leaderboards.gap_ranks

Reads the tables `choices.csv` of both studies and ranks every setting by its gap, and by its drop under
log-likelihood, largest first.
"""

import csv
import re
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "results" / "gap-study"
NAMED = {"pocket-10m": ("kda", "instruct-only"), "smollm2": ("hybrid", "text-only")}
"""Study → student and setting of README."""


def settings(study: str) -> list[tuple[str, str, float, float]]:
    """Student, setting, gap and drop under log-likelihood, in points; without the teacher's own row."""
    with (STUDIES / study / "choices.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        (
            row["student"].strip("`"),
            row["choice"].strip("`"),
            _number(row["gap"]),
            _number(row["drop, log-likelihood"]),
        )
        for row in rows
    ]


def _number(cell: str) -> float:
    """The point of ``+3.4 (+0.5 to +6.4)``."""
    found = re.match(r"[+−-]?[\d.]+", cell)
    assert found is not None, cell
    return float(found.group().replace("−", "-"))


def main() -> None:
    """Print the ranks and the largest gaps of both studies."""
    for study, named in NAMED.items():
        rows = settings(study)
        by_gap = sorted(rows, key=lambda row: -row[2])
        by_drop = sorted(rows, key=lambda row: -row[3])
        (mine,) = (row for row in rows if row[:2] == named)
        print(
            f"{study}: {' / '.join(named)} has gap {mine[2]:.1f}, {by_gap.index(mine) + 1} of {len(rows)}, "
            f"and drop under log-likelihood {mine[3]:.1f}, {by_drop.index(mine) + 1} of {len(rows)}"
        )
        for student, choice, gap, drop in by_gap[:5]:
            print(f"  {student} / {choice}: gap {gap:.1f}, drop under log-likelihood {drop:.1f}")


if __name__ == "__main__":
    main()

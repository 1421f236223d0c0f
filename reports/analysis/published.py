"""Our recovery beside the published one, on the benchmarks that both have."""

from dataclasses import dataclass

from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.recovery import recovery
from evalsuite.reports.references import (
    BENCHMARKS,
    CITATIONS,
    MODELS,
    linearizing_scores,
    macro_recovery,
    nearest_scale,
)
from evalsuite.reports.resampled import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One student beside the student of arXiv 2504.14366 with the same mixer and the nearest size."""

    subject: int
    model: str
    """As the paper calls it."""
    scale: str
    benchmarks: tuple[str, ...]
    """Those that both have, as the paper calls them."""
    ours: Estimate
    """Our recovery over just these benchmarks."""
    theirs: float
    """Theirs over just these, a fraction."""
    scores: dict[str, tuple[float, float]]
    """Benchmark → printed score of the student and of its teacher, as fractions."""
    citation: str


def published_rows(pool: Pool) -> list[PublishedRow]:
    """Rows for every pure student whose mixer and size the paper has; none without shared benchmarks."""
    rows = []
    shared = {
        name: [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in ours]
        for name, ours in BENCHMARKS.items()
    }
    for student, subject in enumerate(pool.panel.subjects):
        lineage = lineage_of(subject.plan)
        if subject.teacher is None or lineage.is_hybrid or lineage.main_mixer not in MODELS:
            continue
        scale = nearest_scale(pool.panel.subjects[subject.teacher].plan.parameters)
        if scale is None:
            continue
        model = MODELS[lineage.main_mixer]
        students, teachers = linearizing_scores(model, scale), linearizing_scores("teacher", scale)
        names = [
            name
            for name, cells in shared.items()
            if name in students
            and cells
            and all({student, subject.teacher} <= set(pool.cells[i].present) for i in cells)
        ]
        theirs = macro_recovery([students[n] for n in names], [teachers[n] for n in names]) if names else None
        if theirs is None:
            continue
        data = pool.of(pool.scope("published", [i for n in names for i in shared[n]]), [student])
        assert data is not None  # `names` has only answered cells
        rows.append(
            PublishedRow(
                subject=student,
                model=model,
                scale=scale,
                benchmarks=tuple(names),
                ours=recovery(data, student, subject.teacher),
                theirs=theirs,
                scores={n: (students[n] / 100, teachers[n] / 100) for n in names},
                citation=f"{CITATIONS['linearizing_2025']}, Table 5",
            )
        )
    return rows

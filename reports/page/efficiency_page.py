"""The page of efficiency measurements alone, such as those of models with random weights."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

import evalsuite
from evalsuite.foundation import DataError, write_text
from evalsuite.reports.measures.efficiency import ALONE, CROSSOVERS, EFFICIENCY, cost_blocks, ratio_rows
from evalsuite.reports.page.render import FOLDER, new_environment, packed_plotly
from evalsuite.reports.page.tables import shown
from evalsuite.reports.records.efficiency import EfficiencyRow, read_efficiency
from evalsuite.reports.section import BLOCKS

SCRIPTS = ("unpack.js", "page.js", "figures.js")


def write_efficiency(runs: Sequence[Path], out: Path) -> list[Path]:
    """Write efficiency.html, efficiency.csv and crossovers.csv of the measurements of run folders.

    Raises:
        DataError: the runs have no measurements, or a line is none.
        RunFolderError: `out` cannot be written.
    """
    rows = read_efficiency(runs)
    if not rows:
        raise DataError(
            f"{', '.join(map(str, runs))}: no measurements; make them with `evalsuite bench … --out RUN`"
        )
    texts = {
        "efficiency.html": efficiency_page(rows),
        "efficiency.csv": EFFICIENCY.of(rows).csv(ALONE),
        "crossovers.csv": CROSSOVERS.of(ratio_rows(rows)).csv(ALONE),
    }
    for name, content in texts.items():
        write_text(out / name, content)
    return [out / name for name in texts]


def efficiency_page(rows: Sequence[EfficiencyRow]) -> str:
    """One HTML file without network requests."""
    environment = new_environment()
    models = {row.weights_id: row.label for row in rows}
    body = environment.get_template(BLOCKS.name).render(view=shown(cost_blocks(rows), ALONE))
    return environment.get_template("efficiency.html.j2").render(
        version=evalsuite.__version__,
        title=f"Efficiency of {len(models)} models by context",
        body=Markup(body),
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        plotly=packed_plotly(),
        scripts=[Markup((FOLDER / "scripts" / name).read_text(encoding="utf-8")) for name in SCRIPTS],
    )

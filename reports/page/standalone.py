"""Pages of what belongs to no report, such as measurements of efficiency or a selection of layers."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

import evalsuite
from evalsuite.foundation import DataError, counted, write_text
from evalsuite.reports.blocks import Block
from evalsuite.reports.measures.efficiency import CROSSOVERS, EFFICIENCY, cost_blocks, ratio_rows
from evalsuite.reports.measures.layers import selector_blocks
from evalsuite.reports.page.render import FOLDER, new_environment, packed_plotly
from evalsuite.reports.page.tables import shown
from evalsuite.reports.records.efficiency import EfficiencyRow, read_efficiency
from evalsuite.reports.records.sidecars import Selection
from evalsuite.reports.section import BLOCKS
from evalsuite.reports.table import ALONE

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
    """The page of measurements, such as those of models with random weights."""
    models = {row.weights_id: row.label for row in rows}
    title = f"Efficiency of {counted(len(models), 'model')} by context"
    return standalone_page(title, cost_blocks(rows), source="efficiency.csv and crossovers.csv")


def selection_page(selection: Selection, source: str) -> str:
    """The page of a selection: importance of the layers, and stability of the selected set.

    Args:
        selection: which layers stay softmax, and why.
        source: name of its file, in the same folder.
    """
    count, unit = len(selection.units), "head" if selection.head_scores else "layer"
    title = f"{counted(count, f'softmax {unit}')}, selected by {selection.selector}"
    return standalone_page(title, selector_blocks(selection, selection.selector), source=source)


def standalone_page(title: str, blocks: Sequence[Block], *, source: str) -> str:
    """One HTML file without network requests.

    Args:
        title: heading.
        blocks: what it shows; its tables hold rows that belong to no report.
        source: names of the files with all numbers, in the same folder.
    """
    environment = new_environment()
    body = environment.get_template(BLOCKS.name).render(view=shown(blocks, ALONE))
    return environment.get_template("standalone.html.j2").render(
        version=evalsuite.__version__,
        title=title,
        body=Markup(body),
        source=source,
        style=Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        plotly=packed_plotly(),
        scripts=[Markup((FOLDER / "scripts" / name).read_text(encoding="utf-8")) for name in SCRIPTS],
    )

"""Model cards of students with their Distillation Loss Statement and model-index.

The card that `evalsuite distill` wrote into a student's folder is kept: its statement is replaced and its
front matter gains the results. A student without one gets a card of what the run knows.
"""

from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, write_text
from evalsuite.foundation.model_card import LOSS_STATEMENT, read_card, replace_section, table, write_card
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.exports.exporter import EXPORTERS, Export, folder_of
from evalsuite.reports.exports.hub import model_index
from evalsuite.reports.exports.loss_statement import loss_statement
from evalsuite.reports.markdown import escape
from evalsuite.reports.report import Report

FILE = "README.md"


class ModelCard:
    """`<student>/README.md`."""

    title = "model card"

    def write(self, report: Report, out: Path) -> Export:
        """Write the card of every student that has a teacher in the runs; see `Exporter`."""
        files = []
        for student in report.students():
            path = Path(out) / folder_of(report, student) / FILE
            write_text(path, card(report, student, path))
            files.append(path)
        if not files:
            raise DataError("no student is compared with a teacher in these runs; name one with --teacher")
        return Export(tuple(files))


EXPORTERS.add("model-card", ModelCard())


def card(report: Report, student: int, path: Path) -> str:
    """The card of a student.

    Args:
        report: with its teacher.
        student: index of the checkpoint.
        path: where the card will be; a card that is there is kept, else that in the checkpoint's folder.

    Raises:
        DataError: the existing card has front matter that is no YAML mapping, or cannot be read.
    """
    front_matter, body = _existing(report, student, path)
    index = model_index(report, student)
    # Results of another evaluation under the same name would be read as those of this one.
    front_matter = {key: value for key, value in front_matter.items() if key != "model-index"}
    if index:
        front_matter["model-index"] = index
    return write_card(front_matter, replace_section(body, LOSS_STATEMENT, loss_statement(report, student)))


def _existing(report: Report, student: int, path: Path) -> tuple[dict[str, Any], str]:
    for file in (path, Path(report.checkpoints[student].path) / FILE):
        if file.is_file():
            try:
                return read_card(file.read_text(), str(file))
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{file}: cannot be read ({error}); remove or repair it") from error
    return _front_matter(), _body(report, student)


def _front_matter() -> dict[str, Any]:
    return {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["evalsuite", "distillation"],
    }


def _body(report: Report, student: int) -> str:
    entry = report.checkpoints[student]
    assert entry.teacher is not None
    lineage = lineage_of(entry)
    facts = [
        ("weights", entry.weights_id),
        ("compared with", report.checkpoints[entry.teacher].label),
        ("recipe", lineage.recipe),
        ("mixers", lineage.describe_mixers()),
        ("tokens", None if lineage.tokens is None else f"{lineage.tokens:,}"),
        ("distinct tokens", None if lineage.distinct_tokens is None else f"{lineage.distinct_tokens:,}"),
        ("ancestors", " → ".join(lineage.ancestors)),
    ]
    rows = [[name, escape(value) if value else "not recorded"] for name, value in facts]
    return f"# {escape(entry.label)}\n\n{table(['', ''], rows)}\n"

"""What the training text of the students shares with the evaluated documents, from files next to the page."""

import csv
from pathlib import Path

from evalsuite.reports.markdown import table
from evalsuite.reports.studies.decision.protocol import Protocol

NEEDLES = "overlap-needles.csv"


def section(protocol: Protocol, out: Path) -> list[str]:
    """Tables of the files that are there, and the commands that write them."""
    shared = []
    for name, teacher in protocol.teachers.items():
        rows = _rows(out / f"overlap-{name}.csv")
        texts = [row for row in rows if row["benchmark"]]
        found = [row for row in texts if int(row["overlapping"])]
        if texts:
            total = sum(int(row["documents"]) for row in texts)
            shared += [
                [teacher.title, f"`{row['benchmark']}`", row["documents"], row["overlapping"]]
                for row in found
            ] or [[teacher.title, "all", str(total), "0"]]
    needles = [
        [
            f"`{row['benchmark']}`",
            *(row[name] for name in ("documents", "with_key", "with_value", "with_ngram")),
            f"{100 * float(row['largest_share']):.1f} %",
            f"{row['template_matches']} of {row['template_ngrams']}",
        ]
        for row in _rows(out / NEEDLES)
    ]
    commands = [
        f"python -m evalsuite.distill.data.decontamination {teacher.recipe} \\\n"
        f"    {protocol.suite} --data DATA --as-trained --out {name}\n"
        f"mv {name}/overlap.csv overlap-{name}.csv"
        for name, teacher in protocol.teachers.items()
    ]
    commands.append(
        "python -m evalsuite.distill.data.decontamination.needles \\\n"
        "    RUN/documents/needle_*.jsonl --text DATA/corpora/*.zst DATA/instruct/*.zst --out ."
    )
    files = ", ".join(f"`overlap-{name}.csv`" for name in protocol.teachers)
    return [
        "## Contamination",
        "Evaluated documents with 13 words in a row that the training text has, too, after its exclusions "
        f"(benchmarks without any are in {files}):",
        table(["students of", "benchmark", "documents", "shared"], shared),
        "Needles of which the training text holds a key, a value, or an 8-gram of words outside the "
        "templates, the largest share of a document's 8-grams, and 8-grams of the templates "
        f"(`{NEEDLES}`):",
        table(
            ["benchmark", "documents", "key", "value", "8-gram", "largest share", "templates"],
            needles,
        ),
        "```\n" + "\n".join(commands) + "\n```",
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if it is not there."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))

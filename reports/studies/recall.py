"""How well students look back: distances on held-out text by token class, and spans that come back.

    python -m evalsuite.reports.studies.recall RECIPE kda=students/kda far=students/far/kda --out recall

Students are compared with the recipe's teacher on the held-out part of its natural text: sources that repeat
chunks are left out. One file per student is written below --out, `summary.csv` has all of them, and
`looks.jsonl` gets one line per measurement, so that every look at the data is known. No benchmark is read.

- KL(teacher ‖ student), top-1 agreement, and the share of the teacher's right next tokens that the student
  retains, for sequences of 128 to 4,096 tokens of the same text;
- the same by token class (`evalsuite.models.diagnostics.token_classes`): `copied` tokens by the distance from
  the earlier n-gram, `repeated`, and `new` ones;
- recall: of the tokens of a span that comes back, and that the teacher predicts, the share that the
  student predicts (`evalsuite.models.diagnostics.repeated_spans`), by the gap; and the gain, by how many
  nats a token of the span is more likely than where the span stood first.

`--choose BASE` prints the student that `choose` picks from all files below --out.
"""

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalsuite.foundation import ConfigError, append_jsonl, write_csv, write_json
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser

if TYPE_CHECKING:
    from evalsuite.distill import Recipe
    from evalsuite.models.diagnostics.repeated_spans import RepeatedSpan, SpanScores

LENGTHS = (128, 512, 2048, 4096)
"""Tokens of the sequences; the longest is a multiple of the others."""
DISTANCES = (64, 256, 1024, 4096)
"""Inclusive upper ends of the distances of copied tokens."""
GAPS = (256, 1024, 3072)
"""Gaps of the spans that come back."""
CLASSES = ("new", "repeated", *(f"copied-{distance}" for distance in DISTANCES))
CRITERIA = ("recall", "retained_128", "retained_512")
"""Columns that a student can be chosen by."""
TOLERANCE = 1.03
"""Factor on the base's KL at 512 tokens that a chosen student may have."""


def classes_of(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places in `CLASSES` of the tokens of one sequence [length]."""
    from evalsuite.models.diagnostics.token_classes import NGRAM, previous_places

    found = np.where(previous_places(tokens, 1) >= 0, CLASSES.index("repeated"), CLASSES.index("new"))
    earlier = previous_places(tokens, NGRAM)
    distance = np.arange(len(tokens)) - earlier
    copied = np.searchsorted(DISTANCES, distance) + CLASSES.index("repeated") + 1
    return np.where(earlier >= 0, copied, found)


def text_rows(teacher: Any, student: Any, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Distances per token by length and class; KL is None for a class without tokens."""
    from evalsuite.models.diagnostics.distance import MEASURES, Passage, compare_models

    columns = MEASURES[1:]
    found = []
    for length in LENGTHS:
        passages = [
            Passage(str(number), row, 1, classes_of(row)[1:])
            for number, row in enumerate(rows.reshape(-1, length))
        ]
        sums = np.zeros((len(CLASSES), 1 + len(columns)))
        for each in compare_models(teacher, {"": student}, passages, groups=len(CLASSES)):
            sums[each.group] += [getattr(each, name) for name in MEASURES]
        for name, (tokens, *measured) in zip(("all", *CLASSES), [sums.sum(0), *sums], strict=True):
            means = [float(value / tokens) if tokens else None for value in measured]
            counted = {"length": length, "class": name, "tokens": int(tokens)}
            found.append(counted | dict(zip(columns, means, strict=True)))
    return found


def span_rows(
    spans: Mapping[int, "Sequence[RepeatedSpan]"], teacher: Mapping[int, "SpanScores"], student: Any
) -> list[dict[str, Any]]:
    """Recall by gap: share of predicted tokens, of both models and of those the teacher predicts."""
    from evalsuite.models.diagnostics.repeated_spans import span_scores

    found = []
    for gap, members in spans.items():
        theirs, ours = teacher[gap], span_scores(student, members)
        known = int(theirs.right.sum())
        found.append(
            {
                "gap": gap,
                "spans": len(members),
                "tokens": len(theirs.right),
                "teacher_right": float(theirs.right.mean()),
                "student_right": float(ours.right.mean()),
                "recall": float(ours.right[theirs.right].mean()) if known else None,
                "teacher_gain": float(theirs.gain.mean()),
                "student_gain": float(ours.gain.mean()),
            }
        )
    return found


def summary(measured: Mapping[str, Any]) -> dict[str, Any]:
    """One row: KL and agreement by length, KL of copied tokens by distance, recall and gain by gap.

    A student that cannot look back still has some recall, of tokens that follow from the cue. What it gains
    over the first occurrence, in nats per token, shows that.
    """
    by_class = {(row["length"], row["class"]): row for row in measured["text"]}
    whole = {length: by_class[length, "all"] for length in LENGTHS}
    recalls = [row["recall"] for row in measured["spans"]]
    return {
        "student": measured["student"],
        **{f"kl_{length}": row.get("kl") for length, row in whole.items()},
        "agreement_512": whole[512]["agreement"],
        "retained_128": _retained(whole[128]),
        "retained_512": _retained(whole[512]),
        **{f"kl_{name}": by_class[LENGTHS[-1], name]["kl"] for name in CLASSES},
        **{f"recall_{row['gap']}": row["recall"] for row in measured["spans"]},
        **{f"gain_{row['gap']}": row["student_gain"] for row in measured["spans"]},
        "recall": None if None in recalls else float(np.mean(recalls)),
    }


def _retained(row: Mapping[str, Any]) -> float | None:
    """Share of the teacher's right tokens that the student has right; None if that was not measured."""
    return row["retained"] / row["teacher_right"] if row.get("teacher_right") else None


def choose(
    rows: Sequence[Mapping[str, Any]],
    base: str,
    candidates: Sequence[str] = (),
    *,
    by: str = "recall",
    tolerance: float = TOLERANCE,
) -> str:
    """Return the best student whose KL at 512 tokens is at most `tolerance` times the base's.

    Args:
        rows: as `summary` returns them.
        base: the student that KL is compared with; it may be chosen.
        candidates: the students to choose from; default: all.
        by: the column that is maximized, one of `CRITERIA`.
        tolerance: factor on the base's KL.

    Raises:
        ConfigError: `base`, or what is maximized, was not measured.
    """
    known = {row["student"]: row for row in rows}
    if base not in known:
        raise ConfigError(f"--choose {base}: was not measured; there are {', '.join(sorted(known))}")
    compared = {
        name: row for name, row in known.items() if name == base or not candidates or name in candidates
    }
    # None where the teacher predicts nothing, or has no token right.
    if by != "recall" and (without := [name for name, row in compared.items() if row[by] is None]):
        raise ConfigError(f"--by {by}: not in the files of {', '.join(sorted(without))}; measure these again")
    limit = tolerance * known[base]["kl_512"]
    allowed = [
        row
        for name, row in compared.items()
        if name == base or (row["kl_512"] <= limit and row[by] is not None)
    ]
    return str(max(allowed, key=lambda row: (row[by] or 0.0, -row["kl_512"]))["student"])


class RecallMeasurement:
    """What the students of a recipe are measured on: its teacher, held-out text, and spans that come back.

    Args:
        tokens: of the text, at least.
        spans: per gap.
        device: of all models; students are read in bfloat16 on a GPU, the teacher in float32.

    Raises:
        ConfigError: the recipe has no teacher or no held-out natural text.
    """

    def __init__(self, recipe: "Recipe", *, tokens: int, spans: int, device: str) -> None:
        from evalsuite.distill.data.preparation import eos_token_id
        from evalsuite.distill.data.workers import default_num_workers
        from evalsuite.distill.training.held_out import held_out_text
        from evalsuite.models import load_checkpoint
        from evalsuite.models.diagnostics.repeated_spans import repeated_spans, span_scores

        if recipe.teacher is None:
            raise ConfigError(f"recipe '{recipe.name}' has no teacher; set one with --set teacher=…")
        self._recipe, self._count, self._device = recipe.name, spans, device
        checkpoint = load_checkpoint(recipe.teacher, dtype="float32", device=device)
        self._teacher = checkpoint.model
        workers = default_num_workers(device.partition(":")[0], 1)
        self._rows = held_out_text(recipe, checkpoint.tokenizer, tokens, LENGTHS[-1], num_workers=workers)
        stream, end = self._rows.reshape(-1), eos_token_id(checkpoint.tokenizer)
        self._spans = {gap: repeated_spans(stream, gap, spans, end=end) for gap in GAPS}
        self._scores = {gap: span_scores(self._teacher, members) for gap, members in self._spans.items()}

    def measure(self, name: str, folder: str, out: Path) -> None:
        """Measure the student in `folder`, write `out`/NAME.json and note the look."""
        from evalsuite.models import load_checkpoint

        dtype = "bfloat16" if self._device.startswith("cuda") else "float32"
        student = load_checkpoint(folder, dtype=dtype, device=self._device)
        measured = {
            "student": name,
            "weights_id": student.weights_id,
            "text": text_rows(self._teacher, student.model, self._rows),
            "spans": span_rows(self._spans, self._scores, student.model),
        }
        write_json(out / f"{name}.json", measured)
        look = {"time": round(time.time()), "recipe": self._recipe, "student": name}
        look |= {"tokens": self._rows.size, "spans": self._count, "weights_id": student.weights_id}
        append_jsonl(out / "looks.jsonl", [look])


def summaries(out: Path) -> list[dict[str, Any]]:
    """Rows of all students below `out`, by name."""
    return [summary(json.loads(path.read_text())) for path in sorted(out.glob("*.json"))]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the table, or choose."""
    parser = Parser(
        prog="python -m evalsuite.reports.studies.recall",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="a name from `evalsuite show recipes`, or a YAML file")
    parser.add_argument("students", nargs="*", metavar="NAME=FOLDER")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--data", type=Path, metavar="DIR", help="value of $EVALSUITE_DATA in the recipe")
    parser.add_argument("--tokens", type=int, default=131_072, help="held-out tokens (default: 131072)")
    parser.add_argument("--spans", type=int, default=256, help="spans per gap (default: 256)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: cpu)")
    parser.add_argument("--choose", metavar="BASE", help="print the student that the rule picks")
    parser.add_argument("--among", nargs="+", default=[], metavar="NAME", help="students to choose from")
    parser.add_argument(
        "--by", choices=CRITERIA, default="recall", help="what is maximized (default: recall)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help="factor on the KL of BASE (default: %(default)s)"
    )
    given = parser.parse_intermixed_args(arguments)
    if given.data is not None:
        os.environ["EVALSUITE_DATA"] = str(given.data)
    students = {}
    for text in given.students:
        name, equals, folder = text.partition("=")
        if not equals or not name or name in students:
            raise ConfigError(f"{text}: expected NAME=FOLDER, with another name for every student")
        students[name] = folder
    from evalsuite.distill import load_recipe

    given.out.mkdir(parents=True, exist_ok=True)
    if students:
        recipe = load_recipe(given.recipe, given.overrides)
        measurement = RecallMeasurement(recipe, tokens=given.tokens, spans=given.spans, device=given.device)
        for name, folder in students.items():
            measurement.measure(name, folder, given.out)
    rows = summaries(given.out)
    if not rows:
        raise ConfigError(f"{given.out}: no student was measured; name one as NAME=FOLDER")
    if given.choose is not None:
        print(choose(rows, given.choose, given.among, by=given.by, tolerance=given.tolerance))
        return
    path = given.out / "summary.csv"
    write_csv(path, rows[0], (map(_cell, row.values()) for row in rows))
    print(path.read_text(), end="")


def _cell(value: Any) -> Any:
    return f"{value:.5f}" if isinstance(value, float) else value


if __name__ == "__main__":
    run_module("evalsuite.reports.studies.recall", main)

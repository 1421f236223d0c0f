"""The run folder that the page of the first leaderboard is made from.

    python -m evalsuite.reports.studies.leaderboards.first_leaderboard RUN
    evalsuite compare RUN --redact --no-samples --out reports/results/smollm2-135m-instruct

Its samples with `distances.parquet` from the sums per document of `reports/results/distances`, which are
published there once.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from evalsuite.foundation.parser import Parser
from evalsuite.reports.records.distances import ANSWERS, DISTANCE_FILE
from evalsuite.reports.run import read_manifest
from evalsuite.reports.studies.leaderboards.leaderboard_numbers import FIRST, RESULTS

MEASURED = RESULTS / "distances"


def distances_of(samples: Path) -> pd.DataFrame:
    """Rows of `distances.parquet` of the students that were measured and of the rounded teachers."""
    plan = read_manifest(samples)
    (teacher,) = (each.weights_id for each in plan.checkpoints if each.role == "teacher")
    scored = {each.label: each.weights_id for each in plan.checkpoints}
    measured = pd.read_csv(MEASURED / "equality.csv").groupby("checkpoint")["weights_id"].first()
    frames = []
    for model, rows in (*_answers(), *_texts()):
        rows = rows.assign(bits=None, same_recipe_as=None, teacher=teacher)
        if model.endswith("-bit"):
            rows = rows.assign(weights_id=teacher, bits=int(model.removesuffix("-bit")))
        else:
            again = measured[model] != scored[model]
            rows = rows.assign(weights_id=measured[model], same_recipe_as=scored[model] if again else None)
        frames.append(rows)
    return pd.concat([frame.astype(object) for frame in frames], ignore_index=True)


def _answers() -> Iterator[tuple[str, pd.DataFrame]]:
    table = pd.read_parquet(MEASURED / "answers.parquet")
    for model in (name.removesuffix(".kl") for name in map(str, table) if name.endswith(".kl")):
        if model != "bfloat16":
            yield (
                model,
                pd.DataFrame(
                    {
                        "text": ANSWERS,
                        "source": table["benchmark"],
                        "doc_id": table["doc_id"],
                        "token_class": None,
                        "positions": None,
                        "tokens": table["tokens"].astype(int),
                        "kl": table[f"{model}.kl"].astype(float).clip(lower=0),
                        "agreement": table[f"{model}.agreement"].astype(int),
                        # Not published; reports do not read them.
                        "teacher_nll": 0.0,
                        "student_nll": 0.0,
                    }
                ),
            )


def _texts() -> Iterator[tuple[str, pd.DataFrame]]:
    table = pd.read_parquet(MEASURED / "text.parquet").rename_axis(None)
    names = ["model", "source", "token_class", "positions"]
    table[names] = table[names].astype(object)
    table["text"] = np.where(table["source"] == "wikitext", "WikiText", "held-out")
    table["kl"] = table["kl"].clip(lower=0)
    for model, rows in table.groupby("model"):
        if model != "bfloat16":
            yield str(model), rows.drop(columns="model")


def main() -> None:
    """Write the run folder."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a folder that does not exist yet")
    run = parser.parse_args().run
    shutil.copytree(FIRST / "samples", run)
    DISTANCE_FILE.add(run, distances_of(run))


if __name__ == "__main__":
    main()

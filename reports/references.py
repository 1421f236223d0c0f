"""Published figures, to stand beside ours where the benchmark is theirs.

The tables are cut from the papers; scores are percentages as printed. `Published.citation` says where a
figure comes from.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "references"

CITATIONS = {
    "linearizing_2025": "What Matters in Linearizing Language Models?, arXiv 2504.14366",
    "gendistill_2026": "When Perplexity Lies, arXiv 2603.26556",
}

BENCHMARKS = {
    "LAMBADA": ("lambada", "lambada_openai"),
    "WinoGrande": ("winogrande",),
    "ARC-E": ("arc_easy",),
    "ARC-C": ("arc_challenge",),
    "PIQA": ("piqa",),
    "HellaSwag": ("hellaswag",),
    "BEAR": ("bear",),
    "MMLU-Redux": ("mmlu_redux",),
    "C-Eval": ("ceval",),
    "CMMLU": ("cmmlu",),
    "BBH": ("bbh",),
    "GSM8K": ("gsm8k",),
    "HumanEval": ("humaneval",),
    "IFEval": ("ifeval",),
    "S-NIAH-1": ("niah_single_1",),
    "S-NIAH-2": ("niah_single_2",),
    "S-NIAH-3": ("niah_single_3",),
    "NIAH-Single-1": ("niah_single_1",),
    "NIAH-Single-2": ("niah_single_2",),
    "NIAH-Single-3": ("niah_single_3",),
}
"""Name in the papers → names of ours."""

MODELS = {
    "linear_attention": "Linear Attn",
    "retnet": "RetNet",
    "gla": "GLA",
    "mlstm": "xLSTM",
    "deltanet": "DeltaNet",
    "gated_deltanet": "Gated DeltaNet",
    "kda": "Kimi",
}
"""Our mixer → the student's name in arXiv 2504.14366."""

SCALES = {"140M": 140e6, "360M": 360e6, "1.7B": 1.7e9}


@dataclass(frozen=True, slots=True)
class Published:
    """One printed figure."""

    source: str
    """Key of `CITATIONS`."""
    table: str
    model: str
    role: str
    scale: str
    teacher: str
    protocol: str
    benchmark: str
    """As the paper calls it."""
    metric: str
    context: int | None
    value: float
    note: str

    @property
    def citation(self) -> str:
        """Paper and table."""
        return f"{CITATIONS[self.source]}, {self.table}"


@cache
def published() -> tuple[Published, ...]:
    """Every shipped figure; blanks of the papers are left out."""
    found = []
    for source in CITATIONS:
        with open(FOLDER / f"{source}.csv", newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["value"] == "":
                    continue
                found.append(
                    Published(
                        source=source,
                        table=row["table"],
                        model=row["model"],
                        role=row["role"],
                        scale=row["scale"],
                        teacher=row["teacher"],
                        protocol=row["protocol"],
                        benchmark=row["benchmark"],
                        metric=row["metric"],
                        context=_tokens(row["context"]),
                        value=float(row["value"]),
                        note=row["note"],
                    )
                )
    return tuple(found)


def _tokens(text: str) -> int | None:
    """`512`, `4k`, `128K` → tokens; ranges and blanks → None."""
    digits = text.lower().removesuffix("k")
    if not digits.isdigit():
        return None
    return int(digits) * (1024 if text.lower().endswith("k") else 1)


def macro_recovery(student: Sequence[float], teacher: Sequence[float]) -> float | None:
    """Ratio of macro averages of printed scores; None if the teacher's is not above zero.

    Raises:
        ValueError: the two have different lengths, or none at all.
    """
    if len(student) != len(teacher) or not teacher:
        raise ValueError(f"{len(student)} scores of the student, {len(teacher)} of the teacher")
    total = sum(teacher)
    return sum(student) / total if total > 0 else None


def macro_gap(
    student: tuple[Sequence[float], Sequence[float]], teacher: tuple[Sequence[float], Sequence[float]]
) -> tuple[float, float, float]:
    """Deficits under log-likelihood and generation, and the gap between them, of printed scores.

    Args:
        student: scores under log-likelihood, scores under generation, on the same benchmarks.
        teacher: likewise.

    Raises:
        ValueError: the four lists do not have one length above zero.
    """
    sizes = {len(scores) for pair in (student, teacher) for scores in pair}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"lists of lengths {sorted(sizes)}")
    n = sizes.pop()
    ranked, written = ((sum(teacher[i]) - sum(student[i])) / n for i in (0, 1))
    return ranked, written, written - ranked


def nearest_scale(parameters: int | None) -> str | None:
    """The scale of arXiv 2504.14366 nearest to a model's size; None if unknown or more than twice off."""
    if not parameters:
        return None
    scale, size = min(SCALES.items(), key=lambda item: abs(item[1] - parameters))
    return scale if 0.5 <= size / parameters <= 2 else None


def linearizing_scores(model: str, scale: str) -> Mapping[str, float]:
    """Zero-shot scores of one model of Table 5: name of the benchmark in the paper → percentage."""
    return {
        figure.benchmark: figure.value
        for figure in published()
        if figure.source == "linearizing_2025"
        and figure.table == "Table 5"
        and figure.scale == scale
        and (figure.role == "teacher" if model == "teacher" else figure.model == model)
        and figure.benchmark not in ("AVG.", "RECOV.")
    }

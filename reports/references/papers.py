"""Scores that the papers print, for comparison with a report.

The CSV files in this folder hold the papers' tables of scores, as printed: percentages, perplexities, and
fractions where the metric says ``score (0-1)``. Three tables are left out because they repeat others: Table 2
of arXiv 2504.14366 (Table 5, rounded), Table 5 of arXiv 2603.26556 (Table 18), and Table 1 of KL-guided layer
selection (Table 4).
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent

CITATIONS = {
    "linearizing_2025": "What Matters in Linearizing Language Models?, arXiv 2504.14366",
    "kd_nine_2025": "Empirical Evaluation of Knowledge Distillation, arXiv 2504.14366, earlier version",
    "gendistill_2026": "When Perplexity Lies, arXiv 2603.26556",
    "kl_guided_2026": "Distilling to Hybrid Attention Models via KL-guided Layer Selection, ICLR 2026",
}
"""CSV file in this folder → paper."""

BENCHMARKS = {
    "LAMBADA": ("lambada", "lambada_openai"),
    "WinoGrande": ("winogrande",),
    "ARC-E": ("arc_easy",),
    "ARC-C": ("arc_challenge",),
    "PIQA": ("piqa",),
    "HellaSwag": ("hellaswag",),
    "BEAR": ("bear",),
    "MMLU": ("mmlu",),
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
    "DuReader": ("longbench_dureader",),
    "HotpotQA": ("longbench_hotpotqa",),
    "MuSiQue": ("longbench_musique",),
    "NarrativeQA": ("longbench_narrativeqa",),
    "QMSum": ("longbench_qmsum",),
    "TriviaQA": ("longbench_triviaqa",),
    "FDA": ("fda",),
    "SWDE": ("swde",),
    "SQuADv2": ("squadv2",),
}
"""Benchmark name in the papers → benchmark names of evalsuite, any of which it is."""

MEANS = {
    "LLM AVG": ("lambada", "winogrande", "arc_easy", "arc_challenge", "piqa", "hellaswag"),
    "NIAH-S AVG": ("niah_single_1", "niah_single_2", "niah_single_3"),
    "LONGB.": (
        "longbench_2wikimqa",
        "longbench_multifieldqa_en",
        "longbench_narrativeqa",
        "longbench_trec",
        "longbench_triviaqa",
    ),
    "RULER": (
        "niah_single_1",
        "niah_single_2",
        "niah_single_3",
        "niah_multikey_1",
        "niah_multikey_2",
        "niah_multikey_3",
        "niah_multivalue",
        "niah_multiquery",
        "ruler_vt",
        "ruler_cwe",
        "ruler_fwe",
        "ruler_qa_1",
        "ruler_qa_2",
    ),
}
"""Name of a mean in the papers → the benchmarks of evalsuite that it is over, all of them."""

TABLE_MEANS = {"AVG.", "RECOV.", "Avg"}
"""Columns of the papers that summarize the rest of their table."""

MODELS = {
    "linear_attention": "Linear Attn",
    "retnet": "RetNet",
    "gla": "GLA",
    "mlstm": "xLSTM",
    "deltanet": "DeltaNet",
    "gated_deltanet": "Gated DeltaNet",
    "kda": "Kimi",
}
"""Mixer → the student's name in arXiv 2504.14366."""

SCALES = {"140M": 140e6, "360M": 360e6, "1.7B": 1.7e9}


@dataclass(frozen=True, slots=True)
class PaperScore:
    """One printed score."""

    source: str
    """Key of `CITATIONS`, or the name of a user's file."""
    table: str
    model: str
    role: str
    scale: str
    teacher: str
    protocol: str
    benchmark: str
    """The paper's name of it."""
    metric: str
    context: int | None
    value: float
    note: str

    @property
    def citation(self) -> str:
        """Paper and table."""
        return ", ".join(filter(None, (CITATIONS.get(self.source, self.source), self.table)))


@cache
def paper_scores() -> tuple[PaperScore, ...]:
    """All shipped scores; empty cells of the papers' tables are skipped."""
    found = []
    for source in CITATIONS:
        with open(FOLDER / f"{source}.csv", newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["value"] == "":
                    continue
                found.append(
                    PaperScore(
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
    """Parse `512`, `4k` or `128K`; ranges and blanks give None."""
    digits = text.lower().removesuffix("k")
    if not digits.isdigit():
        return None
    return int(digits) * (1024 if text.lower().endswith("k") else 1)


def macro_recovery(student: Sequence[float], teacher: Sequence[float]) -> float | None:
    """Ratio of macro averages of printed scores; None if the teacher's average is not above zero.

    Raises:
        ValueError: different lengths, or empty lists.
    """
    if len(student) != len(teacher) or not teacher:
        raise ValueError(f"{len(student)} student scores, {len(teacher)} teacher scores")
    total = sum(teacher)
    return sum(student) / total if total > 0 else None


def macro_gap(
    student: tuple[Sequence[float], Sequence[float]], teacher: tuple[Sequence[float], Sequence[float]]
) -> tuple[float, float, float]:
    """Drop under log-likelihood, drop under generation, and their gap, of printed scores.

    Args:
        student: scores under log-likelihood, scores under generation, on the same benchmarks.
        teacher: likewise.

    Raises:
        ValueError: the four lists differ in length or are empty.
    """
    sizes = {len(scores) for pair in (student, teacher) for scores in pair}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"lists of lengths {sorted(sizes)}")
    n = sizes.pop()
    loglikelihood, generation = ((sum(teacher[i]) - sum(student[i])) / n for i in (0, 1))
    return loglikelihood, generation, generation - loglikelihood


def nearest_scale(parameters: int | None) -> str | None:
    """The nearest scale of arXiv 2504.14366; None if unknown or off by more than a factor of 2."""
    if not parameters:
        return None
    scale, size = min(SCALES.items(), key=lambda item: abs(item[1] - parameters))
    return scale if 0.5 <= size / parameters <= 2 else None


def linearizing_scores(model: str, scale: str) -> Mapping[str, float]:
    """Zero-shot scores of one model, Table 5 of arXiv 2504.14366: benchmark in the paper → percentage."""
    return {
        figure.benchmark: figure.value
        for figure in paper_scores()
        if figure.source == "linearizing_2025"
        and figure.table == "Table 5"
        and figure.scale == scale
        and (figure.role == "teacher" if model == "teacher" else figure.model == model)
        and figure.benchmark not in TABLE_MEANS
    }

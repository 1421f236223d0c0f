"""Effects of the same choices in arXiv 2603.26556: differences of macro averages of its tables."""

from dataclasses import dataclass

from evalsuite.reports.references.papers import paper_scores

PAPER = "gendistill_2026"


@dataclass(frozen=True, slots=True)
class _Rows:
    tables: str
    """One, or `A, B` where each has one protocol."""
    arm: str
    base: str


_KD = "Hybrid KDA, KD, completion, 500M"
CONTRASTS = {
    "cross-entropy": _Rows("Table 18", "Hybrid KDA, SFT, completion, 500M", _KD),
    "kl-and-cross-entropy": _Rows("Table 14", "cross-entropy weight 0.1", "no cross-entropy"),
    "top-10": _Rows("Table 13", "top 100 logits", "all logits"),
    "top-100": _Rows("Table 13", "top 100 logits", "all logits"),
    "full-mask": _Rows("Table 18", "Hybrid KDA, KD, prompt and completion, 500M", _KD),
    "instruct-only": _Rows(
        "Table 17", "run 12: combined, 15/85, 1B", "run 3: sequential, KD + C, 500M 3b, 1B"
    ),
    "half-instruct": _Rows("Table 18", "Hybrid KDA, KD, completion, 250M", _KD),
    "double-instruct": _Rows("Table 18", "Hybrid KDA, KD, completion, 750M", _KD),
    "mamba2": _Rows("Table 2, Table 19", "Hybrid Mamba", "Hybrid KDA"),
    "trained-softmax": _Rows("Table 6", "Hybrid KDA, attention trained", "Hybrid KDA, attention frozen"),
    "uniform": _Rows("Table 12", "5 attention layers by Uniform", "5 attention layers by Beam Add"),
    "teacher-single": _Rows("Table 4", "stage 3b on AM-Qwen3-Distilled, 500M", "stage 3b on Smoltalk2, 500M"),
    "teacher-responses": _Rows(
        "Table 4", "stage 3b on AM-Qwen3-Distilled, 500M", "stage 3b on Smoltalk2, 500M"
    ),
}
"""Arm → the printed rows that come nearest to it and to its base. `instruct-only`: combined stages with
85 % of instruction data, at equal tokens. `double-instruct`: half as much again. `text-only` has no row."""


@dataclass(frozen=True, slots=True)
class PrintedEffect:
    """A difference of two printed rows, in points."""

    value: float
    table: str
    benchmarks: int


def printed_effect(arm: str, protocol: str) -> PrintedEffect | None:
    """Return the printed effect of an arm: the mean difference over the benchmarks that both rows have.

    Perplexities and means that the table itself prints are left out. None if the paper prints none under this
    protocol.
    """
    rows = CONTRASTS.get(arm)
    if rows is None:
        return None
    scores: dict[str, dict[str, float]] = {rows.arm: {}, rows.base: {}}
    table = ""
    for each in paper_scores():
        place = each.source == PAPER and each.table in rows.tables.split(", ") and each.protocol == protocol
        if place and each.metric in ("score", "accuracy") and each.model in scores:
            table = each.table
            scores[each.model][each.benchmark] = each.value
    shared = scores[rows.arm].keys() & scores[rows.base].keys()
    if not shared:
        return None
    differences = [scores[rows.arm][name] - scores[rows.base][name] for name in sorted(shared)]
    return PrintedEffect(sum(differences) / len(differences), table, len(shared))

"""What a run comes to, in a few lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Summary:
    """What `evaluate` did; `print` it."""

    run: Path
    computed: dict[str, int] = field(default_factory=dict)
    """Answers that had to be computed, per checkpoint; the rest was there."""
    failed: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Answers that are errors, such as refusals, per checkpoint: how many, and the reason of one."""
    added: dict[str, int] = field(default_factory=dict)
    """Answers of other machines that were new here, per checkpoint."""
    missing: int = 0
    """Answers that are not there yet."""
    scores: Any = None
    """The table of `evalsuite.reports.scores.score_table`, once judged."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time per phase."""
    partial: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Benchmarks of which the data holds only a part: documents there, documents published."""
    errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Records without a value because asking failed, per checkpoint: how many, and the reason of one."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Benchmarks, or single contexts of them, that are not asked, and why."""

    def notices(self) -> list[str]:
        """What a reader of the scores must know about the data."""
        lines = [
            f"{name}: {there:,} of {published:,} documents are here"
            for name, (there, published) in self.partial.items()
        ]
        return lines + [f"{name} is left out: {reason}" for name, reason in self.left_out.items()]

    def __str__(self) -> str:
        lines = [] if self.scores is None or self.scores.empty else [_table(self.scores), ""]
        if self.computed:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.computed.items())
            lines.append(f"computed answers: {counts}")
        # Once judged, what failed is told by the document.
        lines += [
            f"{label}: {count:,} answers are errors, such as: {reason}"
            for label, (count, reason) in ({} if self.errors else self.failed).items()
        ]
        if self.added:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.added.items())
            lines.append(f"added answers: {counts}")
        if self.missing:
            lines.append(f"{self.missing:,} answers are missing; the same command goes on")
        lines += [
            f"{label}: {count:,} documents could not be answered and enter no score, such as: {reason}"
            for label, (count, reason) in self.errors.items()
        ]
        lines += self.notices()
        spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return "\n".join([*lines, f"{spent}; the run is in {self.run}"])


def _table(scores: Any) -> str:
    """Main metrics, one line per benchmark, protocol and context, one column per checkpoint."""
    import numpy as np
    import pandas as pd

    main = scores[scores["main"]].copy()
    # The table of scores holds logarithms of perplexities; here they are what their metric is called.
    main["score"] = main["score"].where(main["direction"] != "lower", np.exp(main["score"]))
    context = main["context"].map(lambda value: "" if pd.isna(value) else f"@{value}")
    main["asked"] = main["benchmark"] + context + " " + main["protocol"] + " " + main["metric"]
    table = main.pivot_table(index="asked", columns="label", values="score", sort=False, aggfunc="mean")
    table.insert(0, "documents", main.groupby("asked", sort=False)["documents"].max())
    table.index.name, table.columns.name = None, None
    return str(table.to_string(float_format=lambda value: f"{value:.3f}"))

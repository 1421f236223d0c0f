"""What of the runs is compared: teacher, checkpoints, partial cells and errors, alike for page and gate."""

from dataclasses import dataclass
from typing import Literal, get_args

from evalsuite.foundation import ConfigError, nearest

ErrorRule = Literal["wrong", "exclude"]
ERROR_RULES: tuple[ErrorRule, ...] = get_args(ErrorRule)
UnreadRule = Literal["ignore", "missing"]


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Selection that `compare` and `gate` share; what is not given follows the policy, then the default."""

    teacher: str | None = None
    """Name (label, weights_id or path) of the only teacher; None: the teachers of the plans."""
    checkpoints: tuple[str, ...] = ()
    """Names (labels, weights_ids, paths) of the students; empty: all. Their teachers are always included."""
    min_coverage: float | None = None
    """Admit partial cells with at least this share of the planned documents. Default: 1, none."""
    errors: ErrorRule | None = None
    """`wrong`, the default: a response that is an error scores 0. `exclude`: leave its document out."""
    unread_contexts: UnreadRule | None = None
    """Contexts beyond what a checkpoint reads: `ignore`, the default, leaves them out for it; `missing`
    counts them as not measured. Only a policy chooses."""
    same: tuple[str, ...] = ()
    """What is one checkpoint: ``LABEL`` for the same weights under several engines, dtypes, devices or
    versions, ``LABEL=NAME,NAME`` for one model that several harnesses evaluated."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError for a value out of range."""
        if self.min_coverage is not None and not 0 < self.min_coverage <= 1:
            raise ConfigError(
                f"min_coverage = {self.min_coverage}: a share of the planned documents, above 0 and at most 1"
            )
        if self.errors is not None and self.errors not in ERROR_RULES:
            known = ", ".join(ERROR_RULES)
            raise ConfigError(f"errors = {self.errors!r}: one of {known}{nearest(self.errors, ERROR_RULES)}")

    def with_defaults(
        self, min_coverage: float | None, errors: ErrorRule | None, unread_contexts: UnreadRule
    ) -> "RunSelection":
        """Return the selection with the values of a policy where none is given."""
        return RunSelection(
            self.teacher,
            self.checkpoints,
            min_coverage if self.min_coverage is None else self.min_coverage,
            errors if self.errors is None else self.errors,
            unread_contexts if self.unread_contexts is None else self.unread_contexts,
            self.same,
        )

    @property
    def excludes_errors(self) -> bool:
        """Whether documents with errors are left out."""
        return self.errors == "exclude"

    def admits(self, documents: int, planned: int) -> bool:
        """Whether a cell with this many of the planned documents is measured."""
        coverage = 1.0 if self.min_coverage is None else self.min_coverage
        return documents > 0 and documents >= coverage * planned * (1 - 1e-12)

    @property
    def notices(self) -> tuple[str, ...]:
        """One sentence for each choice that departs from the defaults."""
        found = []
        if self.teacher is not None:
            found.append(f"Every student is compared with '{self.teacher}' (--teacher).")
        if self.checkpoints:
            found.append(f"Only some checkpoints are compared: {', '.join(self.checkpoints)} (--checkpoint).")
        if self.same:
            found.append(f"Declared as one checkpoint each (--same): {'; '.join(self.same)}.")
        if self.min_coverage is not None and self.min_coverage < 1:
            found.append(
                f"Cells with at least {100 * self.min_coverage:g} % of their planned documents are compared "
                f"(min_coverage {self.min_coverage:g}); the documents that were scored first are no random "
                "sample."
            )
        if self.excludes_errors:
            found.append(
                "Documents whose responses are errors are excluded instead of counted as wrong (errors "
                "exclude)."
            )
        if self.unread_contexts == "missing":
            found.append(
                "Contexts that a checkpoint does not read count as not measured (unread_contexts missing)."
            )
        return tuple(found)

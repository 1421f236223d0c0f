"""Which contexts a checkpoint reads: the positions that its config states, or more where a run extends them.

Standard library only: evaluation and reports share the rule, and the infer phase imports it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The limit of one checkpoint in one run."""

    positions: int | None
    """Positions that its config states; None: it states none, or the record is older."""
    max_length: int | None = None
    """Positions that the run extends checkpoints to (`--max-length`); None: it does not."""

    @property
    def extension(self) -> int | None:
        """Positions to read where the config states fewer; None: as stated."""
        extends = self.max_length is not None and self.max_length > (self.positions or 0)
        return self.max_length if extends else None

    @property
    def longest(self) -> int | None:
        """Positions that it reads; None: unknown."""
        return self.extension or self.positions

    def reads(self, context: int | None) -> bool:
        """Whether it is evaluated on documents of a context; None: of a benchmark without contexts."""
        return context is None or self.longest is None or context <= self.longest

    def is_beyond(self, tokens: int) -> bool:
        """Whether a text of this many tokens is out of distribution: longer than the stated positions."""
        return self.extension is not None and self.positions is not None and tokens > self.positions

    @property
    def reason(self) -> str:
        """Why contexts are not read."""
        return f"supports at most {self.longest or 0:,} tokens"


def context_name(benchmark: str, context: int) -> str:
    """Return the name of one context of a benchmark, such as ``niah_single_1@16384``."""
    return f"{benchmark}@{context}"

"""Distill a recipe and its variants on an executor; those that start from another variant come after it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.executors import Channel, Executor
from evalsuite.foundation import progress

if TYPE_CHECKING:
    from evalsuite.distill import Recipe


@dataclass(frozen=True)
class Variant:
    """A recipe as it is distilled, as `evalsuite.executors.Job`.

    Args:
        folder: below the output folder, which all workers see; empty for the recipe itself.
        recipe: with the variant's overrides.
        mixers: instead of the recipe's.
        out: the output folder.
        options: further arguments of `evalsuite.distill.distill`.
    """

    folder: str
    recipe: "Recipe"
    mixers: Sequence[str] | None
    out: Path
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"distill {self.folder or self.recipe.name}"

    @property
    def name(self) -> str:
        """By which others start from it."""
        return Path(self.folder).name

    @property
    def starts(self) -> set[str]:
        """Names of the variants that it starts from."""
        return {
            start[1:] for start in self.recipe.student.initial_checkpoints.values() if start.startswith(":")
        }

    @property
    def group(self) -> str:
        """Workers keep nothing between recipes."""
        return self.folder

    @property
    def cost(self) -> float:
        """Tokens times students."""
        students = len(self.mixers or self.recipe.student.mixers)
        return float(students * sum(stage.tokens for stage in self.recipe.stages))

    @property
    def gpus(self) -> int | None:
        """One, unless the device is a CPU."""
        return 0 if self.options.get("device") == "cpu" else None

    def prepare(self) -> dict[str, Any]:
        """Return the arguments of `distill`."""
        return {"recipe": self.recipe, "out": self.out / self.folder, "mixers": self.mixers, **self.options}


class DistillWorker:
    """Distills recipes into folders that it shares with the process that called `distill_variants`."""

    def run(self, prepared: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
        """Distill one recipe. Returns ``students``: the folders."""
        from evalsuite.distill import distill

        return {"students": [str(path) for path in distill(**prepared)]}

    def close(self) -> None:
        """Nothing is held."""


def distill_variants(variants: Sequence[Variant], executor: Executor) -> Iterator[Path]:
    """Yield the folders of students as they are made.

    Args:
        variants: at least one.
        executor: carries them out.

    Raises:
        ConfigError, CheckpointError, DataError: as `evalsuite.distill.distill`.
    """
    waiting = list(variants)
    bar = progress(
        total=len(variants), what="distill", unit="recipe", quiet=executor.workers(variants[0].gpus) < 2
    )
    with bar:
        while waiting:
            names = {each.name for each in waiting}
            ready = [each for each in waiting if not each.starts & names]
            waiting = [each for each in waiting if each not in ready]
            for _, result in executor.map(DistillWorker, ready, _Bar(bar), ready[0].out / "executor"):
                bar.update(1)
                yield from map(Path, result["students"])


class _Bar:
    """A channel without messages: recipes write their own folders."""

    def __init__(self, bar: Any) -> None:
        self.set_description = bar.set_description

    def send(self, message: Mapping[str, Any]) -> None:
        raise AssertionError(f"a recipe sends no messages, but this came: {message}")

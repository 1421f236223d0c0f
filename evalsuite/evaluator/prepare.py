"""Making a suite's documents of stated lengths ahead, once for all models with one tokenizer."""

from dataclasses import dataclass
from pathlib import Path

from evalsuite.evaluator.asking import counted_as, counter, resolve_suite, too_long
from evalsuite.evaluator.checkpoints import describe
from evalsuite.foundation import progress
from evalsuite.tasks.freeze import Frozen, freeze_made


@dataclass(frozen=True)
class Prepared:
    """What was made."""

    files: list[Frozen]
    left_out: dict[str, str]
    """Contexts that the checkpoint does not read."""


def prepare_documents(
    suite: str | Path, folder: Path, checkpoint: str, *, trust_remote_code: bool = False, quiet: bool = False
) -> Prepared:
    """Freeze RULER's and other documents of stated lengths that a suite asks, counted by one tokenizer.

    Runs with this data folder then take them as they are, for every checkpoint that has this tokenizer;
    they would make the same ones.

    Args:
        suite: a name or a YAML file.
        folder: a frozen folder, which holds what the documents are drawn from.
        checkpoint: whose tokenizer counts.
        trust_remote_code: as `evalsuite.models.checkpoints.load_checkpoint`.
        quiet: no progress bar.

    Raises:
        ConfigError, CheckpointError, DataError: as `evalsuite.evaluator.evaluate`.
    """
    subjects = describe([checkpoint], None, trust_remote_code=trust_remote_code)
    asking = resolve_suite(suite, subjects)
    left_out = too_long(asking, subjects)
    asking = asking.without(left_out)
    wanted = [
        (benchmark, context, counted)
        for entry, benchmark in asking.entries
        if (counted := counted_as(subjects[0], benchmark, template=asking.template)) is not None
        for context in entry.contexts
    ]
    files = [
        freeze_made(
            benchmark,
            context,
            folder,
            seed=asking.suite.seed,
            counted=counted,
            count_tokens=counter(subjects[0].tokenizer, benchmark, template=asking.template),
        )
        for benchmark, context, counted in progress(
            wanted, total=len(wanted), what="make documents", unit="file", quiet=quiet
        )
    ]
    return Prepared(files, left_out)

"""Versions of the scorers: equal versions turn equal responses into equal scores."""

from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from evalsuite.foundation import content_hash, file_hash, named_answers
from evalsuite.models.checkpoints.fingerprint import source_hash
from evalsuite.protocols import sandbox
from evalsuite.protocols.loglikelihood import TASK_FOLDER
from evalsuite.protocols.scorers import SCORERS
from evalsuite.reports.records.score_files import ScorerVersion
from evalsuite.tasks.benchmark import Benchmark

_FOLDER = Path(sandbox.__file__).parent
_LOGLIKELIHOOD = ("loglikelihood.py", "compat_lm_eval.py")
EXTRACTION = ("extraction.py", "named_answers.py", "thoughts.py")
_GENERATION = ("generation.py", "reasoning.py", "thinking.py", "outcomes.py", "compat_evalscope.py")
_ADAPTER = "evalscope_adapter.py"
_SANDBOX = ("sandbox.py", "sandbox_child.py")


_harness_version = cache(metadata.version)
"""Its metadata are parsed once, not for every cell."""


def scorer_version(benchmark: Benchmark, protocol: str) -> ScorerVersion:
    """Return the version of what scores a benchmark under one protocol.

    The version of the harness package, which its task files come with, and a hash of our own code (without
    comments and docstrings), task files and the version of the scorer that the benchmark names.

    Raises:
        ConfigError: an unknown scorer, or a plugin's that cannot be used.
    """
    if protocol == "loglikelihood":
        assert benchmark.loglikelihood is not None
        own = benchmark.loglikelihood.task.startswith("evalsuite/")
        files = {
            each.name: file_hash(each) for each in sorted(TASK_FOLDER.iterdir()) if own and each.is_file()
        }
        return ScorerVersion(
            scorer=benchmark.loglikelihood.task,
            version=content_hash([source_hash(*_LOGLIKELIHOOD, root=_FOLDER), files], 12),
            harness="lm-eval",
            harness_version=_harness_version("lm-eval"),
        )
    assert benchmark.generation is not None
    spec = benchmark.generation
    parts: list[Any] = [
        source_hash(*_GENERATION, root=_FOLDER),
        source_hash(*EXTRACTION, root=Path(named_answers.__file__).parent),
    ]
    if spec.dataset in sandbox.IN_SANDBOX:
        parts.append(source_hash(*_SANDBOX, root=_FOLDER))
    if spec.scorer is not None:
        scorer = SCORERS.get_or_raise(spec.scorer, benchmark.name)
        parts += [source_hash(_ADAPTER, root=_FOLDER), SCORERS.origin(spec.scorer), scorer.version]
    return ScorerVersion(
        scorer=spec.scorer or spec.dataset,
        version=content_hash(parts, 12),
        harness="EvalScope",
        harness_version=_harness_version("evalscope"),
    )

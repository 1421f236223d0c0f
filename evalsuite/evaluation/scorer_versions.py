"""Versions of the scorers: equal versions turn equal responses into equal scores."""

import inspect
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, content_hash, file_hash, nearest
from evalsuite.models.fingerprint import source_hash
from evalsuite.protocols import sandbox, scorers
from evalsuite.protocols.loglikelihood import TASK_FOLDER
from evalsuite.reports.records.score_files import ScorerVersion
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.synthetic import pocket

_FOLDER = Path(scorers.__file__).parent
_LOGLIKELIHOOD = ("loglikelihood.py", "compat_lm_eval.py")
_GENERATION = ("generation.py", "outcomes.py", "compat_evalscope.py")
_OWN_SCORERS = ("evalscope_adapter.py", "scorers.py", "longbench.py")
_SANDBOX = ("sandbox.py", "sandbox_child.py")


def scorer_version(benchmark: Benchmark, protocol: str) -> ScorerVersion:
    """Return the version of what scores a benchmark under one protocol.

    The version of the harness package, which its task files come with, and a hash of our own code (without
    comments and docstrings) and task files.

    Raises:
        ConfigError: an unknown scorer.
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
            harness_version=metadata.version("lm-eval"),
        )
    assert benchmark.generation is not None
    spec = benchmark.generation
    parts: list[Any] = [source_hash(*_GENERATION, root=_FOLDER)]
    if spec.dataset in sandbox.IN_SANDBOX:
        parts.append(source_hash(*_SANDBOX, root=_FOLDER))
    if spec.scorer is not None:
        if spec.scorer not in scorers.SCORERS:
            raise ConfigError(
                f"{benchmark.name}: 'scorer' = {spec.scorer}{nearest(spec.scorer, scorers.SCORERS)}"
            )
        parts += [source_hash(*_OWN_SCORERS, root=_FOLDER), _function_hash(scorers.SCORERS[spec.scorer])]
    return ScorerVersion(
        scorer=spec.scorer or spec.dataset,
        version=content_hash(parts, 12),
        harness="EvalScope",
        harness_version=metadata.version("evalscope"),
    )


def _function_hash(function: Callable[..., Any]) -> str:
    """Hash a scorer that another package may have registered; ours are part of `_OWN_SCORERS`."""
    while isinstance(function, partial):
        function = function.func
    module = inspect.getmodule(function)
    if module is scorers:
        file = Path(inspect.getfile(pocket.score_response))
        return source_hash(file.name, root=file.parent)
    return content_hash(inspect.getsource(function))

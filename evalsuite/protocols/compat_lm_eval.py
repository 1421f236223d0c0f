"""Every patch of lm-eval, and every use of its private modules. Contract tests: `tests/protocols`.

Each function checks the installed version first, because a patch may silently stop to apply in another one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from evalsuite.foundation import MissingDependencyError

VERSIONS = ("0.4.13",)
"""Versions that the contract tests were run with."""


@lru_cache
def check_version() -> None:
    """Raise MissingDependencyError for a version of lm-eval that is not in `VERSIONS`."""
    found = metadata.version("lm-eval")
    if found not in VERSIONS:
        raise MissingDependencyError(
            f"lm-eval {found} is not supported: evalsuite patches its internals and is tested with "
            f"{', '.join(VERSIONS)}; pip install lm-eval=={VERSIONS[-1]}"
        )


def load_task_config(path: Path, *, import_code: bool = True) -> dict[str, Any]:
    """Read a task file with lm-eval's own YAML loader, `include` resolved.

    Args:
        path: the file.
        import_code: resolve `!function` tags, which runs the Python files that they name.
    """
    check_version()
    from lm_eval.tasks._yaml_loader import load_yaml

    return dict(load_yaml(path, resolve_func=import_code))


def seed_fewshot_sampler(task: Any, seed: int) -> None:
    """Seed the few-shot draw of one document.

    lm-eval draws from one stream for all documents; a seed per document makes its prompt independent of the
    documents before it.
    """
    check_version()
    if hasattr(task, "sampler"):
        task.sampler.set_rnd(seed)


@contextmanager
def cached_template_parsing() -> Iterator[None]:
    """Cache lm-eval's parsed Jinja templates, which it parses again for every document and example.

    With five examples per document, parsing takes most of the time of building prompts.
    """
    check_version()
    from lm_eval.utils import env

    env.from_string = _parse_template
    try:
        yield
    finally:
        del env.from_string


@lru_cache(maxsize=1024)
def _parse_template(template: str) -> Any:
    from lm_eval.utils import env

    return type(env).from_string(env, template)


def cache_rendered_fields(task: Any, docs: Sequence[Any]) -> None:
    """Cache a task's rendered text, target and choices of these docs, which must outlive the task.

    Scoring reads the choices and the gold answer of a document several times per response.
    """
    check_version()
    ids = {id(doc) for doc in docs}

    def cached(render: Callable[..., Any]) -> Callable[..., Any]:
        rendered: dict[int, Any] = {}

        def lookup(doc: Any, *others: Any, **named: Any) -> Any:
            if others or named or id(doc) not in ids:
                return render(doc, *others, **named)
            if id(doc) not in rendered:
                rendered[id(doc)] = render(doc)
            return rendered[id(doc)]

        return lookup

    for name in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        setattr(task, name, cached(getattr(task, name)))

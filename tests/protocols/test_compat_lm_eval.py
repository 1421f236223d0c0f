"""Contracts of the patches of lm-eval: each would fail if an update changed what it relies on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalsuite.foundation import MissingDependencyError
from evalsuite.protocols import compat_lm_eval


def test_compat_lm_eval_refuses_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat_lm_eval.metadata, "version", lambda name: "9.9.9")
    compat_lm_eval.check_version.cache_clear()
    with pytest.raises(
        MissingDependencyError, match=r"lm-eval 9\.9\.9 is not supported.*pip install lm-eval=="
    ):
        compat_lm_eval.check_version()
    monkeypatch.undo()
    compat_lm_eval.check_version.cache_clear()
    compat_lm_eval.check_version()


def test_compat_lm_eval_load_task_config_resolves_include(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("task: base\noutput_type: multiple_choice\n")
    (tmp_path / "task.yaml").write_text("include: base.yaml\ntask: derived\n")
    config = compat_lm_eval.load_task_config(tmp_path / "task.yaml")
    assert (config["task"], config["output_type"]) == ("derived", "multiple_choice")


def test_compat_lm_eval_seed_fewshot_sampler_decides_the_draw() -> None:
    from lm_eval.api.samplers import ContextSampler

    sampler = ContextSampler(list(range(100)), rnd=0)
    task = SimpleNamespace(sampler=sampler)
    draws = []
    for seed in (1, 2, 1):
        compat_lm_eval.seed_fewshot_sampler(task, seed)
        draws.append(list(sampler.sample(5)))
    assert draws[0] == draws[2] != draws[1]
    # A task without few-shot examples has no sampler.
    compat_lm_eval.seed_fewshot_sampler(SimpleNamespace(), 1)


def test_compat_lm_eval_cached_template_parsing_parses_once_and_renders_the_same() -> None:
    from lm_eval import utils

    template, doc = "{{ question }}\nAnswer:", {"question": "Why?"}
    expected = utils.apply_template(template, doc)
    with compat_lm_eval.cached_template_parsing():
        assert utils.apply_template(template, doc) == expected
        assert utils.env.from_string(template) is utils.env.from_string(template)
    assert utils.env.from_string(template) is not utils.env.from_string(template)


def test_compat_lm_eval_cache_rendered_fields_renders_known_docs_once() -> None:
    calls: list[Any] = []

    def render(doc: Any, *_: Any) -> str:
        calls.append(doc)
        return f"text of {doc['number']}"

    task = SimpleNamespace(doc_to_text=render, doc_to_target=render, doc_to_choice=render)
    known, other = {"number": 1}, {"number": 2}
    compat_lm_eval.cache_rendered_fields(task, [known])
    assert [task.doc_to_text(known), task.doc_to_text(known)] == ["text of 1"] * 2
    assert len(calls) == 1
    assert [task.doc_to_text(other), task.doc_to_text(other)] == ["text of 2"] * 2
    assert len(calls) == 3


def test_compat_lm_eval_task_has_the_patched_methods() -> None:
    from lm_eval.api.task import ConfigurableTask

    for name in ("doc_to_text", "doc_to_target", "doc_to_choice", "fewshot_context", "construct_requests"):
        assert callable(getattr(ConfigurableTask, name)), name

"""Contracts of the patches of EvalScope and sympy: each would fail if an update changed what it relies on."""

import time
from typing import Any

import pytest

from evalsuite.foundation import MissingDependencyError
from evalsuite.protocols import compat_evalscope
from evalsuite.protocols.isolation import quiet_harness


@pytest.mark.parametrize("package", ["evalscope", "sympy"])
def test_compat_evalscope_refuses_unknown_version(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"evalscope": compat_evalscope.VERSIONS[0], "sympy": compat_evalscope.SYMPY_VERSIONS[0]}
    found = known | {package: "9.9.9"}
    monkeypatch.setattr(compat_evalscope.metadata, "version", found.__getitem__)
    compat_evalscope.check_version.cache_clear()
    with pytest.raises(MissingDependencyError, match=rf"{package} 9\.9\.9 is not supported"):
        compat_evalscope.check_version()
    monkeypatch.undo()
    compat_evalscope.check_version.cache_clear()
    compat_evalscope.check_version()


def adapter(name: str) -> Any:
    with quiet_harness():
        from evalscope.api.registry import get_benchmark
        from evalscope.config import TaskConfig

        return get_benchmark(name, TaskConfig(model="none", datasets=[name]))


def test_compat_evalscope_replace_data_loading_serves_our_documents() -> None:
    from evalscope.api.dataset import Sample
    from evalscope.api.dataset.dataset import MemoryDataset

    gsm8k = adapter("gsm8k")
    requested: list[str] = []

    def load(subset: str) -> MemoryDataset:
        requested.append(subset)
        return MemoryDataset([Sample(input="1 + 1?", target="2")])

    def load_examples(subset: str) -> MemoryDataset:
        requested.append(subset)
        return MemoryDataset([Sample(input="2 + 2?", target="4") for _ in range(4)])

    compat_evalscope.replace_data_loading(gsm8k, load, load_examples)
    with quiet_harness():
        datasets = gsm8k.load_dataset().datasets
    samples = [sample for dataset in datasets.values() for sample in dataset]
    assert [sample.target for sample in samples] == ["2"]
    assert len(requested) == 2


def test_compat_evalscope_replace_sandbox_executes_through_ours() -> None:
    humaneval = adapter("humaneval")
    programs: list[str] = []

    def execute(code: str) -> dict[str, Any]:
        programs.append(code)
        return {"status": "success", "error": ""}

    compat_evalscope.replace_sandbox(humaneval, execute)
    assert humaneval.use_sandbox
    assert humaneval.execute_code_in_sandbox(code="print(1)", timeout=3)["status"] == "success"
    assert programs == ["print(1)"]


def test_compat_evalscope_in_process_math_does_not_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet_harness():
        from evalscope.metrics.math import parser
    original = parser.isolation_available

    def forked(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was forked")

    monkeypatch.setattr(parser, "run_isolated", forked)
    with compat_evalscope.in_process_math():
        assert not parser.isolation_available()
    assert parser.isolation_available is original


def test_compat_evalscope_cached_formula_parsing_parses_once_and_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with quiet_harness():
        from evalscope.metrics.math import parser
    calls: list[str] = []

    def parse(text: str, mode: str) -> tuple[list[Any], str]:
        calls.append(text)
        return [text], text

    monkeypatch.setattr(parser, "_parse", parse)
    with compat_evalscope.cached_formula_parsing():
        first, _ = parser._parse("1/2", "gold")
        first.append("changed")
        assert parser._parse("1/2", "gold") == (["1/2"], "1/2")
    assert calls == ["1/2"]
    assert parser._parse is parse


def test_compat_evalscope_cached_evalf_is_fast_and_exact() -> None:
    import sympy

    short = sympy.sympify("/".join(["124"] * 8), evaluate=False)
    expected = short.evalf(30)
    long = sympy.sympify("/".join(["124"] * 40), evaluate=False)
    started = time.process_time()
    with compat_evalscope.cached_evalf():
        assert short.evalf(30) == expected
        # Uncached, the 40 factors take 2^40 steps.
        assert float(long.evalf()) == pytest.approx(124.0**-38)
    assert time.process_time() - started < 20

"""Thinking budgets in a run: requests, responses, scores, the report, and the command line."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from evalsuite.evaluation.run_paths import read_built
from evalsuite.evaluation.shards.validate import request_demands
from evalsuite.foundation import ConfigError
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse
from evalsuite.protocols.thinking import FORCED_CLOSE, ThinkingRequest, generate
from evalsuite.reports import compare
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.suite import load_suite, resolve, resolve_sampling
from tests.evaluation.runs import evaluate_quietly

BENCHMARK = """name: mine
title: Mine
category: reasoning
license: MIT
citation: none
generated: {generator: english, task: arithmetic, count: 8}
generation:
  dataset: evalsuite
  scorer: exact
  metric: accuracy
  chance: 0
  sampling: {max_new_tokens: 8}
"""
BUDGET = 16


class Thinker:
    """Thinks without end about every second document, and answers what it is made to."""

    name, max_length, notice = "fake", 2048, ""

    def __init__(self, label: str, tokenizer: Any) -> None:
        self.weights_id, self.fingerprint, self.tokenizer = f"weights-{label}", "f" * 16, tokenizer
        self.versions = {"device": "fake", "dtype": "float32"}
        self.requests: list[GenerateRequest] = []

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        for index, each in enumerate(requests):
            self.requests.append(each)
            read = str(self.tokenizer.decode(each.prompt))
            if read.endswith(FORCED_CLOSE):
                text, finish = " forced", "eos"
            elif index % 2:
                text, finish = "yes</think>free", "eos"
            else:
                text, finish = "m" * each.sampling.max_new_tokens, "length"
            tokens = tuple(self.tokenizer(text)["input_ids"])[: each.sampling.max_new_tokens]
            yield index, GenerateResponse(tokens, text, finish)  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing to release."""


@pytest.fixture
def run(
    crew: Any, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Evaluate a model that thinks, with the suite's sampling."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    engines = crew.engines

    def factory(*_: object, **__: object) -> Callable[[str, str | None], Thinker]:
        def make(path: str, label: str | None) -> Thinker:
            engines.append(Thinker(label or path, tokenizer))
            return engines[-1]

        return make

    monkeypatch.setattr("evalsuite.evaluation.inference.engines.engine_factory", factory)
    (tmp_path / "mine.yaml").write_text(BENCHMARK)

    def evaluated(sampling: str, out: str) -> Path:
        (tmp_path / "s.yaml").write_text(
            f"name: s\ntitle: S\nsampling: {sampling}\nbenchmarks: [mine.yaml]\n"
        )
        evaluate_quietly(suite=tmp_path / "s.yaml", checkpoints=["a"], out=tmp_path / out)
        return tmp_path / out

    return evaluated


def responses(folder: Path) -> list[dict[str, Any]]:
    (log,) = (folder / "responses").glob("*.generate.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_forced_closes_are_scored_counted_and_never_mixed(crew: Any, run: Callable[..., Path]) -> None:
    folder = run(f"{{thinking_budget: {BUDGET}}}", "run")
    assert all(each.sampling.thinking_budget is None for each in crew.engines[0].requests)
    texts = sorted(each["response"]["text"] for each in responses(folder))
    assert texts == ["m" * BUDGET + FORCED_CLOSE + " forced"] * 4 + ["yes</think>free"] * 4
    assert {each["key"][1] for each in responses(folder)} == {f"greedy-n8-think{BUDGET}"}
    scores = read_run_scores(folder, "mine", "generation")
    assert scores["closed_by_force"].sum() == 4
    assert read_manifest(folder).benchmarks[0].protocols["generation"].sampling == f"greedy-n8-think{BUDGET}"
    compare([folder], out=folder / "report")
    (row,) = json.loads((folder / "report" / "report.json").read_text())["scores"]
    assert (row["closed_by_force"], row["documents"]) == (4, 8)

    done = crew.computed
    run(f"{{thinking_budget: {BUDGET}}}", "run")
    assert crew.computed == done

    plain = run("{temperature: 0}", "plain")
    assert {each["key"][1] for each in responses(plain)} == {"greedy-n8"}
    assert not {each["key"][0] for each in responses(plain)} & {each["key"][0] for each in responses(folder)}
    assert not read_run_scores(plain, "mine", "generation")["closed_by_force"].any()
    outcomes = read_run_scores(plain, "mine", "generation")["outcome"].tolist()
    assert outcomes.count("truncated") + outcomes.count("looped") == 4


def test_shards_allow_for_the_whole_response(
    run: Callable[..., Path], tokenizer: PreTrainedTokenizerFast
) -> None:
    folder = run(f"{{thinking_budget: {BUDGET}}}", "run")
    manifest = read_built(folder)
    demands = request_demands(folder, manifest, manifest.checkpoints[0].tokenizer)["generate"]
    close = tokenizer(FORCED_CLOSE, add_special_tokens=False)["input_ids"]
    assert set(demands.values()) == {(BUDGET + len(close) + 8,)}


def test_real_engine_goes_on_from_prompt_thought_and_close(tiny: Path) -> None:
    from evalsuite.models.checkpoints.load import load_checkpoint
    from evalsuite.models.inference.requests import SamplingParams
    from evalsuite.models.inference.torch.engine import TorchEngine

    checkpoint = load_checkpoint(str(tiny))
    engine = TorchEngine(checkpoint)
    prompt = tuple(checkpoint.tokenizer("Who sat there?<think>\n")["input_ids"])
    close = tuple(checkpoint.tokenizer(FORCED_CLOSE, add_special_tokens=False)["input_ids"])
    request = ThinkingRequest(prompt, SamplingParams(5, thinking_budget=6), 0, close, in_reasoning=True)
    ((_, found),) = generate(engine, [request])
    ((_, thought),) = engine.generate([GenerateRequest(prompt, SamplingParams(6))])
    assert thought.finish_reason == "length"
    ((_, answer),) = engine.generate([GenerateRequest(prompt + thought.tokens + close, SamplingParams(5))])
    assert found.tokens == thought.tokens + close + answer.tokens
    assert found.text == thought.text + FORCED_CLOSE + answer.text
    assert request.is_complete(found, engine.max_length)


def test_budgets_are_options_of_what_is_requested() -> None:
    suite = load_suite("gsm8k:thinking_budget=2048:limit=5,quick:generation")
    found = {
        benchmark.name: resolve_sampling(suite, entry, benchmark).thinking_budget
        for entry, benchmark in resolve(suite)
    }
    assert found["gsm8k"] == 2048
    assert found["ifeval"] is None
    (entry, benchmark), *_ = resolve(load_suite("quick:thinking_budget=64"))
    sampling = resolve_sampling(load_suite("quick:thinking_budget=64"), entry, benchmark)
    assert (sampling.thinking_budget, sampling.max_new_tokens) == (64, 256)
    with pytest.raises(ConfigError, match="'lambada_openai:thinking_budget=9': it generates nothing"):
        load_suite("lambada_openai:thinking_budget=9")
    with pytest.raises(ConfigError, match="unknown option 'thinking_budget=0'"):
        load_suite("gsm8k:thinking_budget=0")

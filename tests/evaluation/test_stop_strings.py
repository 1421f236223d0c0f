"""Stop strings of prompts without a chat template: in requests and identity, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from evalsuite.evaluation.run_paths import cells_of, read_built
from evalsuite.foundation import ConfigError, RunFolderError
from evalsuite.foundation.strict import parse
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.benchmark import Benchmark, Generation, all_benchmarks
from tests.evaluation.runs import evaluate_quietly

MINE = """name: mine
title: Mine
category: reasoning
license: MIT
citation: none
generated: {{generator: english, task: arithmetic, count: 4}}
generation:
  dataset: evalsuite
  scorer: exact
  metric: accuracy
  chance: 0
  prompt: {prompt}
  sampling: {{max_new_tokens: 8, stop: ["#"]}}
  {stop}
"""
STOP = 'stop: ["\\nQuestion:", "#"]'


@pytest.fixture
def benchmark(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text("name: s\ntitle: S\nlimit: 2\nbenchmarks: [{benchmark: mine.yaml}]\n")
    return tmp_path / "mine.yaml"


def build(benchmark: Path, run: str) -> tuple[tuple[str, ...], str, str]:
    """The stop strings of the requests, the plan's sampling, and the run's configuration."""
    suite, out = benchmark.with_name("s.yaml"), benchmark.with_name(run)
    evaluate_quietly(suite=suite, checkpoints=["a"], out=out, phases=("build",))
    (cell,) = cells_of(read_built(out))
    assert cell.sampling_params is not None
    plan = read_manifest(out).benchmarks[0].protocols["generation"]
    assert plan.sampling == cell.sampling_params.key()
    return cell.sampling_params.stop, plan.sampling, str(read_built(out).config)


def test_only_prompts_without_a_chat_template_get_them(
    crew: Any, benchmark: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark.write_text(MINE.format(prompt="chat", stop=STOP))
    monkeypatch.setattr(tokenizer, "chat_template", None)
    plain = build(benchmark, "plain")
    monkeypatch.setattr(tokenizer, "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    chat = build(benchmark, "chat")
    assert (plain[0], chat[0]) == (("#", "\nQuestion:"), ("#",))
    assert plain[1] != chat[1]
    # With a chat template the key changes nothing: the run is resumed, and finds its responses.
    benchmark.write_text(MINE.format(prompt="chat", stop=""))
    assert build(benchmark, "before") == chat == build(benchmark, "chat")


def test_a_plain_run_that_precedes_them_needs_another_folder(
    crew: Any, benchmark: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    benchmark.write_text(MINE.format(prompt="chat", stop=""))
    build(benchmark, "run")
    benchmark.write_text(MINE.format(prompt="chat", stop=STOP))
    with pytest.raises(
        RunFolderError, match=r"\[mine\].sampling.stop: .*Question.* here\); choose another --out"
    ):
        build(benchmark, "run")


def test_literal_prompts_have_their_own() -> None:
    values = {"dataset": "gsm8k", "metric": "accuracy", "prompt": "literal", "stop": ["x"]}
    with pytest.raises(ConfigError, match=r"'stop' needs 'prompt: chat'; 'sampling: \{stop: \[…\]\}' ends"):
        parse(values | {"sampling": {"max_new_tokens": 8}}, Generation, "mine.yaml")


def needs_stop(benchmark: Benchmark) -> bool:
    """Whether a base model may go on with a next question, which the scorer would read."""
    how = benchmark.generation
    if how is None or how.prompt != "chat":
        return False
    return how.num_fewshot > 0 or how.dataset == "humaneval" or how.scorer in ("exact", "squad")


def test_every_fewshot_prompt_has_stop_strings() -> None:
    """And none can end a response before its first line break, nor one without a next question."""
    needing = {each.name for each in all_benchmarks() if needs_stop(each)}
    assert needing >= {"gsm8k", "bbh", "humaneval", "mmlu", "ceval", "squad", "short_arithmetic"}
    answers = [
        "\nReasoning:\n2 + 2 = 4\n\nANSWER: \\boxed{4}",
        "So the answer is (A).",
        "ANSWER: B",
        "```python\ndef double(x):\n    # Twice.\n    return 2 * x\n```",
        "    total = 0\n\n    for each in x:\n        total += each\n    return total\n",
        "答案：B",
    ]
    for each in all_benchmarks():
        if each.generation is None:
            continue
        stop = each.generation.stop
        assert each.name not in needing or stop
        assert all(text.startswith("\n") for text in stop)
        assert not [text for text in stop for answer in answers if text in answer]

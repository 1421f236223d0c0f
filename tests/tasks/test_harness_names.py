"""Names of lm-eval's and EvalScope's tasks lead to the benchmarks whose rows they read."""

import pytest

from evalsuite.tasks.harness_names import find_task


@pytest.mark.parametrize(
    ("harness", "name", "benchmark", "subject"),
    [
        ("lm-eval", "arc_easy", "arc_easy", None),
        ("lm-eval", "boolq", "boolq", None),
        ("lm-eval", "winogrande", "winogrande", None),
        ("lm-eval", "truthfulqa_mc1", "truthfulqa", None),
        ("lm-eval", "lambada_openai", "lambada_openai", None),
        ("lm-eval", "mmlu_anatomy", "mmlu", "anatomy"),
        ("lm-eval", "ceval-valid_law", "ceval", "law"),
        ("lm-eval", "gsm8k", "gsm8k", None),
        ("EvalScope", "arc.ARC-Easy", "arc_easy", None),
        ("EvalScope", "arc.ARC-Challenge", "arc_challenge", None),
        ("EvalScope", "winogrande", "winogrande", None),
        ("EvalScope", "truthful_qa.multiple_choice", "truthfulqa", None),
        ("EvalScope", "humaneval.openai_humaneval", "humaneval", None),
        ("EvalScope", "mmlu.anatomy", "mmlu", "anatomy"),
        ("EvalScope", "bbh.navigate", "bbh", "navigate"),
    ],
)
def test_a_task_is_the_benchmark_of_its_rows(
    harness: str, name: str, benchmark: str, subject: str | None
) -> None:
    task = find_task(harness, name)
    assert task is not None
    assert (task.benchmark.name, task.subject) == (benchmark, subject)


@pytest.mark.parametrize(
    ("harness", "name"),
    [
        ("lm-eval", "openbookqa"),
        ("lm-eval", "niah_single_1"),  # generated for each tokenizer
        ("EvalScope", "arc"),  # two benchmarks
        ("EvalScope", "evalsuite_prompt"),
        ("Inspect", "arc_easy"),  # its log states no row
    ],
)
def test_other_tasks_have_no_rows_of_a_benchmark(harness: str, name: str) -> None:
    assert find_task(harness, name) is None

"""Questions of data sources and benchmarks, by which searches measure hybrids."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from evalsuite.distill.data.preparation import read_shuffled
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.tasks import Question
from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.sources.documents import (
    documents,
    fewshot_documents,
    sample_documents,
    selection_documents,
)

LETTERS = "ABCDEFGHIJ"
SEARCHED_EXAMPLES = 16384
"""Examples of a data source among which questions are looked for."""


def knowledge_questions(
    context: SelectionContext, name: str | None, num_examples: int, seed: int
) -> list[Question]:
    """Return up to `num_examples` questions of a data source of the recipe, or of a benchmark.

    Of a benchmark, these are documents of its few-shot split if it has one. Without a name, they are
    `pocket_facts` for the pocket tokenizer, and of `arc_easy` otherwise.

    Raises:
        ConfigError: neither a data source of the recipe nor a benchmark with choices.
        DataError: the source has no prompt with a completion.
    """
    if name is None:
        name = "pocket_facts" if _is_pocket(context.tokenizer) else "arc_easy"
    if name in context.training_recipe.data:
        return _questions_of_source(context, name, num_examples, seed, "knowledge")
    if name not in known_benchmarks():
        raise ConfigError(
            f"--option knowledge={name}: neither a data source of this recipe nor a benchmark"
            f"{nearest(name, [*context.training_recipe.data, *known_benchmarks()])}"
        )
    benchmark = load_benchmark(name)
    if benchmark.has_fewshot_split:
        # Selecting layers on evaluated questions would leak them.
        found = sample_documents(fewshot_documents(benchmark), num_examples, seed)
    else:
        found = documents(benchmark, limit=num_examples, seed=seed)
    return [_question_of_row(document.row, f"--option knowledge={name}") for document in found]


def task_questions(
    context: SelectionContext,
    name: str,
    *,
    num_examples: int,
    seed: int,
    prompt_length: int | None = None,
    evaluated: bool = False,
) -> list[Question]:
    """Return up to `num_examples` questions of a data source of the recipe, or of a benchmark.

    Args:
        name: of the source or benchmark, or the path of a benchmark's YAML or file of questions.
        prompt_length: in tokens, for benchmarks that have several.
        evaluated: take the documents that runs evaluate, instead of those of `selection_documents`.

    Raises:
        ConfigError: an unknown name, a benchmark with no documents but those that are evaluated, or whose
            documents are no questions with one right answer.
        DataError: missing data, or a source that has no prompt with a completion.
    """
    if name in context.training_recipe.data:
        return _questions_of_source(context, name, num_examples, seed, "tasks")
    benchmark = load_benchmark(name)
    take = documents if evaluated else selection_documents
    found = take(
        benchmark,
        limit=num_examples,
        seed=seed,
        context=prompt_length,
        count_tokens=lambda text: len(context.tokenizer.encode(text)),
    )
    questions = [_question_of_row(document.row, f"--option tasks={name}") for document in found]
    return [
        replace(question, prompt=document.prefix + question.prompt)
        for document, question in zip(found, questions, strict=True)
    ]


def _is_pocket(tokenizer: Any) -> bool:
    from evalsuite.tasks.synthetic.pocket import load_tokenizer

    return bool(tokenizer.get_vocab() == load_tokenizer().get_vocab())


def _questions_of_source(
    context: SelectionContext, name: str, num_examples: int, seed: int, option: str
) -> list[Question]:
    source = context.training_recipe.data[name].restrict("all")
    found = []
    examples = read_shuffled(name, source, context.tokenizer, seed=seed)
    for example in islice(examples, SEARCHED_EXAMPLES):
        prompt, answer = example.first_turn
        if prompt.rstrip():
            found.append(Question(prompt.rstrip(), answer.strip()))
        if len(found) == num_examples:
            break
    if not found:
        raise DataError(f"--option {option}={name}: this source has no prompts with completions")
    return found


def _question_of_row(row: dict[str, Any], option: str) -> Question:
    """Convert a row with a prompt, or a multiple-choice row in the columns of ARC, MMLU or C-Eval.

    Args:
        option: that named the source, for messages.
    """
    if "prompt" in row and isinstance(row.get("gold"), int):
        texts = [choice.strip() for choice in row["choices"]]
        return Question(row["prompt"], texts[row["gold"]], choices=tuple(texts))
    answers = [row["answer"]] if "answer" in row else row.get("answers", ())
    if "prompt" in row and len(answers) == 1:
        return Question(row["prompt"], answers[0])
    question, choices, answer = (
        row.get("question"),
        row.get("choices"),
        row.get("answerKey", row.get("answer")),
    )
    if question is not None and answer is not None:
        if isinstance(choices, dict) and answer in choices.get("label", ()):
            return _format_question(question, choices["text"], list(choices["label"]).index(answer))
        if isinstance(choices, list | tuple) and isinstance(answer, int):
            return _format_question(question, choices, answer)
        if isinstance(answer, str) and answer in LETTERS and answer in row:
            letters = [letter for letter in LETTERS if letter in row]
            return _format_question(question, [row[each] for each in letters], letters.index(answer))
    raise ConfigError(
        f"{option}: its documents have no question with one correct choice; use arc_easy, mmlu or a data "
        "source of the recipe"
    )


def _format_question(question: str, choices: Sequence[Any], right: int) -> Question:
    texts = tuple(map(str, choices))
    return Question(f"Question: {question}\nAnswer:", texts[right], choices=texts)

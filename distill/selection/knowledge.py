"""The knowledge set of the perplexity searches: questions that are answered from the weights."""

from itertools import islice
from typing import Any

from evalsuite.distill.data.preparation import read_shuffled
from evalsuite.distill.selection.context import SelectionContext
from evalsuite.distill.selection.tasks import Question
from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.sources.documents import documents, fewshot_documents, sample_documents

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
        return _questions_of_source(context, name, num_examples, seed)
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
    return [_question_of_row(document.row, name) for document in found]


def _is_pocket(tokenizer: Any) -> bool:
    from evalsuite.tasks.synthetic.pocket import load_tokenizer

    return bool(tokenizer.get_vocab() == load_tokenizer().get_vocab())


def _questions_of_source(
    context: SelectionContext, name: str, num_examples: int, seed: int
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
        raise DataError(f"--option knowledge={name}: this source has no prompts with completions")
    return found


def _question_of_row(row: dict[str, Any], name: str) -> Question:
    """Convert a multiple-choice row in the columns of pocket, ARC, MMLU or C-Eval."""
    if "prompt" in row and "answer" in row:
        return Question(row["prompt"], row["answer"])
    question, choices, answer = (
        row.get("question"),
        row.get("choices"),
        row.get("answerKey", row.get("answer")),
    )
    if question is not None and answer is not None:
        if isinstance(choices, dict) and answer in choices.get("label", ()):
            return _format_question(question, choices["text"][list(choices["label"]).index(answer)])
        if isinstance(choices, list | tuple) and isinstance(answer, int):
            return _format_question(question, choices[answer])
        if isinstance(answer, str) and answer in LETTERS and answer in row:
            return _format_question(question, row[answer])
    raise ConfigError(
        f"--option knowledge={name}: its documents have no question with one correct choice; use arc_easy, "
        "mmlu or a data source of the recipe"
    )


def _format_question(question: str, answer: str) -> Question:
    return Question(f"Question: {question}\nAnswer:", str(answer))

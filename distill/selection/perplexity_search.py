"""Perplexity of hybrids, averaged over recall, knowledge and plain text (arXiv 2603.26556, Appendix D)."""

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any

import torch

from evalsuite.distill.data.preparation import read_shuffled
from evalsuite.distill.selection.context import ProgressLog, SelectionContext
from evalsuite.distill.selection.tasks import Question, QuestionSet, draw_questions
from evalsuite.foundation import ConfigError, DataError, nearest, progress
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.sources.documents import documents, fewshot_documents, sample_documents

LETTERS = "ABCDEFGHIJ"
SEARCHED_EXAMPLES = 16384
"""Examples of a data source among which questions are looked for."""
COMPONENTS = ("recall", "knowledge", "text")


class HybridPerplexity:
    """Mean perplexity of hybrids, each measured once and logged.

    Args:
        hybrid: softmax layers → context manager of the hybrid.
        name, about: name of the progress log, and settings of the hybrids that are not in the recipe.
    """

    def __init__(
        self,
        context: SelectionContext,
        hybrid: Callable[[Collection[int]], Any],
        name: str,
        about: dict[str, Any],
    ) -> None:
        options = context.options
        self._context, self._hybrid = context, hybrid
        recall = draw_questions("kv", count=options.num_examples, seed=options.seed, pairs=options.num_pairs)
        self._recall = QuestionSet(recall, context.tokenizer, context.device, context.max_length)
        knowledge = knowledge_questions(context)
        self._knowledge = QuestionSet(knowledge, context.tokenizer, context.device, context.max_length)
        settings = (
            "num_examples",
            "num_pairs",
            "seed",
            "knowledge",
            "held_out",
            "all_linear",
            "all_linear_stages",
        )
        about = {**about, **{key: getattr(options, key) for key in settings}}
        self.progress_log: ProgressLog = context.progress_log(name, about)
        self._known = {frozenset(row["layers"]): row for row in self.progress_log.rows}
        self.num_measured = len(self._known)

    def __call__(self, softmax: Collection[int]) -> float:
        """Mean of the three perplexities of the hybrid with these softmax layers."""
        return float(self.components(softmax)["mean"])

    def components(self, softmax: Collection[int]) -> dict[str, Any]:
        """The three perplexities and their mean."""
        key = frozenset(softmax)
        if key not in self._known:
            self._measure([key])
        return self._known[key]

    def best(self, candidates: list[frozenset[int]], width: int, what: str) -> list[frozenset[int]]:
        """Return the `width` candidates with the lowest mean perplexity, best first."""
        new = [candidate for candidate in candidates if candidate not in self._known]
        world = self._context.process_group.world_size
        with progress(total=len(candidates), what=what, unit="hybrid", quiet=self._context.quiet) as bar:
            bar.update(len(candidates) - len(new))
            for start in range(0, len(new), world):
                self._measure(new[start : start + world])
                bar.update(len(new[start : start + world]))
        return sorted(candidates, key=lambda each: (self(each), sorted(each)))[:width]

    def _measure(self, hybrids: Sequence[frozenset[int]]) -> None:
        """Measure up to one hybrid per process and share the values."""
        rank = self._context.process_group.rank
        values = torch.zeros(len(hybrids), len(COMPONENTS), dtype=torch.float64, device=self._context.device)
        if rank < len(hybrids):
            with self._hybrid(hybrids[rank]) as student:
                values[rank] = torch.tensor(
                    (
                        self._recall.evaluate(student).perplexity,
                        self._knowledge.evaluate(student).perplexity,
                        self._context.held_out.perplexity(student),
                    ),
                    dtype=torch.float64,
                )
        self._context.process_group.all_reduce(values)
        for key, found in zip(hybrids, values.tolist(), strict=True):
            components = dict(zip(COMPONENTS, found, strict=True))
            row = {"layers": sorted(key), **components, "mean": sum(found) / len(found)}
            self._known[key] = row
            self.progress_log.append(row)
            self.num_measured += 1


def knowledge_questions(context: SelectionContext) -> list[Question]:
    """Return the knowledge set: questions that are answered from the weights.

    For a benchmark, these are documents of its few-shot split if it has one.

    Raises:
        ConfigError: neither a data source of the recipe nor a benchmark with choices.
        DataError: the source has no prompt with a completion.
    """
    options = context.options
    name = options.knowledge
    if name is None and context.recipe.teacher is not None and _is_pocket(context.tokenizer):
        name = "pocket_facts"
    name = name or "arc_easy"
    if name in context.training_recipe.data:
        return _questions_of_source(context, name)
    if name not in known_benchmarks():
        raise ConfigError(
            f"--option knowledge={name}: neither a data source of this recipe nor a benchmark"
            f"{nearest(name, [*context.training_recipe.data, *known_benchmarks()])}"
        )
    benchmark = load_benchmark(name)
    if benchmark.has_fewshot_split:
        # Selecting layers on evaluated questions would leak them.
        found = sample_documents(fewshot_documents(benchmark), options.num_examples, options.seed)
    else:
        found = documents(benchmark, limit=options.num_examples, seed=options.seed)
    return [_question_of_row(document.row, name) for document in found]


def _is_pocket(tokenizer: Any) -> bool:
    from evalsuite.tasks.synthetic.pocket import load_tokenizer

    return bool(tokenizer.get_vocab() == load_tokenizer().get_vocab())


def _questions_of_source(context: SelectionContext, name: str) -> list[Question]:
    source = context.training_recipe.data[name].restrict("all")
    found = []
    examples = read_shuffled(name, source, context.tokenizer, seed=context.options.seed)
    for example in islice(examples, SEARCHED_EXAMPLES):
        marked = next((i for i, (_, answer) in enumerate(example.segments) if answer), 0)
        prompt = "".join(piece for piece, _ in example.segments[:marked]).rstrip()
        if prompt:
            found.append(Question(prompt, example.segments[marked][0].strip()))
        if len(found) == context.options.num_examples:
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

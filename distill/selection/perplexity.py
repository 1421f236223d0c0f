"""Perplexity averaged over associative recall, a knowledge set and plain text (arXiv 2603.26556, App. D)."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from evalsuite.distill.chat import chat_renderer
from evalsuite.distill.readers import open_reader
from evalsuite.distill.selection.answers import AnswerSet
from evalsuite.distill.selection.ground import Ground
from evalsuite.distill.selection.journal import Journal
from evalsuite.distill.selection.questions import Question, draw
from evalsuite.foundation import ConfigError, DataError, nearest, progress
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.documents import documents, sample, shot_rows

LETTERS = "ABCDEFGHIJ"
PARTS = ("recall", "knowledge", "text")


class Perplexities:
    """The mean perplexity of hybrids, each measured once and written down.

    Args:
        hybrid: a context manager that makes the hybrid with the given softmax layers.
        name, about: of the journal, and what of the hybrids the recipe does not say.
    """

    def __init__(
        self, ground: Ground, hybrid: Callable[[Collection[int]], Any], name: str, about: dict[str, Any]
    ) -> None:
        options = ground.options
        self._ground, self._hybrid = ground, hybrid
        recall = draw("kv", count=options.examples, seed=options.seed, pairs=options.pairs)
        self._recall = AnswerSet(recall, ground.tokenizer, ground.device, ground.positions)
        knowledge = knowledge_questions(ground)
        self._knowledge = AnswerSet(knowledge, ground.tokenizer, ground.device, ground.positions)
        settings = ("examples", "pairs", "seed", "knowledge", "held_out", "trunk", "trunk_stages")
        about = {**about, **{key: getattr(options, key) for key in settings}}
        self.journal: Journal = ground.journal(name, about)
        self._known = {frozenset(row["layers"]): row for row in self.journal.rows}
        self.measured = len(self._known)

    def __call__(self, softmax: Collection[int]) -> float:
        """Mean of the three perplexities of the hybrid with these softmax layers."""
        return float(self.parts(softmax)["mean"])

    def parts(self, softmax: Collection[int]) -> dict[str, Any]:
        """The three perplexities and their mean."""
        key = frozenset(softmax)
        if key not in self._known:
            self._measure([key])
        return self._known[key]

    def best(self, candidates: list[frozenset[int]], keep: int, what: str) -> list[frozenset[int]]:
        """The `keep` candidates of lowest mean perplexity, best first."""
        new = [candidate for candidate in candidates if candidate not in self._known]
        world = self._ground.parallel.world
        with progress(total=len(candidates), what=what, unit="hybrid", quiet=self._ground.quiet) as bar:
            bar.update(len(candidates) - len(new))
            for start in range(0, len(new), world):
                self._measure(new[start : start + world])
                bar.update(len(new[start : start + world]))
        return sorted(candidates, key=lambda each: (self(each), sorted(each)))[:keep]

    def _measure(self, hybrids: Sequence[frozenset[int]]) -> None:
        """Measure up to one hybrid per process, and let all processes know."""
        rank = self._ground.parallel.rank
        values = torch.zeros(len(hybrids), len(PARTS), dtype=torch.float64, device=self._ground.device)
        if rank < len(hybrids):
            with self._hybrid(hybrids[rank]) as student:
                values[rank] = torch.tensor(
                    (
                        self._recall.ask(student).perplexity,
                        self._knowledge.ask(student).perplexity,
                        self._ground.held_out.perplexity(student),
                    ),
                    dtype=torch.float64,
                )
        self._ground.parallel.sum(values)
        for key, found in zip(hybrids, values.tolist(), strict=True):
            parts = dict(zip(PARTS, found, strict=True))
            row = {"layers": sorted(key), **parts, "mean": sum(found) / len(found)}
            self._known[key] = row
            self.journal.append(row)
            self.measured += 1


def knowledge_questions(ground: Ground) -> list[Question]:
    """The knowledge set: questions whose answers must be in the weights.

    A benchmark gives those of the split that its few-shot examples are from, where it has one.

    Raises:
        ConfigError: it names neither a data source of the recipe nor a benchmark with choices.
        DataError: it holds no prompt with a completion.
    """
    options = ground.options
    name = options.knowledge
    if name is None and ground.recipe.teacher is not None and _is_pocket(ground.tokenizer):
        name = "pocket_facts"
    name = name or "arc_easy"
    if name in ground.readable.data:
        return _of_source(ground, name)
    if name not in known_benchmarks():
        raise ConfigError(
            f"--option knowledge={name}: neither a data source of this recipe nor a benchmark"
            f"{nearest(name, [*ground.readable.data, *known_benchmarks()])}"
        )
    benchmark = load_benchmark(name)
    if benchmark.draws_shots:
        # Layers chosen by the evaluated questions would be no fair choice.
        found = sample(shot_rows(benchmark), options.examples, options.seed)
    else:
        found = documents(benchmark, limit=options.examples, seed=options.seed)
    return [_of_row(document.row, name) for document in found]


def _is_pocket(tokenizer: Any) -> bool:
    from evalsuite.tasks.pocket import load_tokenizer

    return bool(tokenizer.get_vocab() == load_tokenizer().get_vocab())


def _of_source(ground: Ground, name: str) -> list[Question]:
    source = ground.readable.data[name].model_copy(update={"part": "all"})
    render = chat_renderer(ground.tokenizer, source.chat_template) if source.messages is not None else None
    examples, _ = open_reader(source, name, render).window({})
    found = []
    for example in examples:
        marked = next((i for i, (_, answer) in enumerate(example.pieces) if answer), 0)
        prompt = "".join(piece for piece, _ in example.pieces[:marked]).rstrip()
        if prompt:
            found.append(Question(prompt, example.pieces[marked][0].strip()))
        if len(found) == ground.options.examples:
            break
    if not found:
        raise DataError(f"--option knowledge={name}: this source has no prompts with completions")
    return found


def _of_row(row: dict[str, Any], name: str) -> Question:
    """A question of the usual shapes of multiple choice: pocket, ARC, MMLU and C-Eval."""
    if "prompt" in row and "answer" in row:
        return Question(row["prompt"], row["answer"])
    question, choices, answer = (
        row.get("question"),
        row.get("choices"),
        row.get("answerKey", row.get("answer")),
    )
    if question is not None and answer is not None:
        if isinstance(choices, dict) and answer in choices.get("label", ()):
            return _asked(question, choices["text"][list(choices["label"]).index(answer)])
        if isinstance(choices, list | tuple) and isinstance(answer, int):
            return _asked(question, choices[answer])
        if isinstance(answer, str) and answer in LETTERS and answer in row:
            return _asked(question, row[answer])
    raise ConfigError(
        f"--option knowledge={name}: its documents have no question with one right choice; take arc_easy, "
        "mmlu or a data source of the recipe"
    )


def _asked(question: str, answer: str) -> Question:
    return Question(f"Question: {question}\nAnswer:", str(answer))

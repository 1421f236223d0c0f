"""Questions as the evaluation puts them: chat prompts of the benchmarks, and plain prompts of lm-eval."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from evalsuite.tasks.benchmark import load_benchmark


@dataclass(frozen=True, slots=True)
class TrainingQuestion:
    """One question with its answer.

    `kind`: the benchmark whose prompt it has. `row`: what the prompt's template reads. `plain`: the prompt
    of the log-likelihood protocol; the answer follows after one space. `origin`: where it was made from.
    """

    kind: str
    row: dict[str, Any] = field(repr=False)
    plain: str
    answer: str
    origin: str

    @property
    def prompt(self) -> str:
        """The text of the user's message."""
        return _template(self.kind).render(**self.row)

    def conversation(self) -> dict[str, Any]:
        """The row of a file of conversations."""
        turns = [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.answer}]
        return {"messages": turns, "source": self.origin}

    def completion(self) -> dict[str, str]:
        """The row of a file of prompts and completions."""
        return {"prompt": self.plain, "completion": f" {self.answer}", "source": self.origin}


@cache
def _template(benchmark: str) -> Template:
    """The template of a benchmark's prompt; that of generated rows, which have a prompt, is the prompt."""
    generation = load_benchmark(benchmark).generation
    assert generation is not None
    environment = Environment(keep_trailing_newline=True, undefined=StrictUndefined, autoescape=False)
    return environment.from_string(generation.prompt_template or "{{ prompt }}")


def reading(context: str, question: str, answer: str, origin: str) -> TrainingQuestion:
    """A question whose answer is a span of its passage."""
    row = {"context": context, "question": question}
    return TrainingQuestion("squad", row, _plain(context, question), answer, origin)


def choice(context: str, question: str, options: list[str], answer: str, origin: str) -> TrainingQuestion:
    """A question with options, after a passage or (if `context` is empty) without one."""
    if context:
        row = {"support": context, "question": question, "choices": options}
        return TrainingQuestion("sciq", row, _plain(context, question), answer, origin)
    row = {"question": question, "choices": options}
    return TrainingQuestion("arc_easy_text", row, _plain("", question), answer, origin)


def yes_or_no(context: str, question: str, answer: str, origin: str) -> TrainingQuestion:
    """A question about a passage that is answered by yes or no."""
    question = question.rstrip("?. ")
    row = {"passage": context, "question": question}
    return TrainingQuestion("boolq", row, _plain(context, f"{question}?"), answer, origin)


def last_word(text: str, origin: str) -> TrainingQuestion:
    """The last word of a passage."""
    prompt, _, word = text.rpartition(" ")
    return TrainingQuestion("lambada_last_word", {"text": text}, prompt, word, origin)


def generated(kind: str, prompt: str, answer: str) -> TrainingQuestion:
    """A question of the English tasks, whose prompt is the same under both protocols."""
    return TrainingQuestion(kind, {"prompt": prompt}, prompt, answer, "evalsuite/english")


def _plain(context: str, question: str) -> str:
    return f"{context}\nQuestion: {question}\nAnswer:" if context else f"Question: {question}\nAnswer:"

"""Synthetic tasks for layer selection, and the accuracy and log-likelihood of a model on them.

Every prompt has two solved examples, which show the format to base models. The words are those of the pocket
world: plain English words that are tokens of its teacher.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import torch

from evalsuite.distill.objectives.forward import hidden_states
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import ConfigError
from evalsuite.models.decoder.head import LanguageModelHead
from evalsuite.tasks.synthetic.pocket import lexicon

NUM_SOLVED = 2
"""Solved examples before each question."""
MAX_SUM_PAIRS = 24
"""Key-value pairs of `ar` and `ar_mh`."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the answer that follows after a space.

    `any_order`: the answer is several words in any order. `choices`: the answer and wrong ones, or none.
    """

    prompt: str
    answer: str
    any_order: bool = False
    choices: tuple[str, ...] = ()


def key_value(rng: random.Random, pairs: int) -> Question:
    """`kv`: look up a key in a dictionary (Table 3, KV Retrieval)."""
    keys, values = rng.sample(lexicon.THINGS, pairs), rng.sample(lexicon.QUALITIES, pairs)
    listed = ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
    *solved_pairs, queried = rng.sample(range(pairs), NUM_SOLVED + 1)
    solved = "".join(f"Query: {keys[i]} {values[i]}\n" for i in solved_pairs)
    return Question(f"Pairs: {listed}.\n{solved}Query: {keys[queried]}", values[queried])


def sum_of_values(rng: random.Random, pairs: int) -> Question:
    """`ar`: add the values of three keys (Table 3, Associative Recall); values are 0 to 9."""
    values = {key: rng.randint(0, 9) for key in rng.sample(lexicon.THINGS, pairs)}
    listed = ", ".join(f"{key} {value}" for key, value in values.items())
    return _sums(rng, listed, list(values), values.__getitem__)


def sum_of_aliases(rng: random.Random, pairs: int) -> Question:
    """`ar_mh`: as `ar`, with keys defined by other keys, up to two hops from a value (Table 3, AR-MH)."""
    keys = rng.sample(lexicon.THINGS, pairs)
    values: dict[str, int] = {}
    targets: dict[str, str] = {}
    depth: dict[str, int] = {}
    for key in keys:
        parents = [other for other in depth if depth[other] < 2]
        if parents and rng.random() < 0.4:
            targets[key] = rng.choice(parents)
            depth[key] = depth[targets[key]] + 1
        else:
            values[key] = rng.randint(0, 9)
            depth[key] = 0
    listed = ", ".join(f"{key} {targets.get(key, values.get(key))}" for key in keys)

    def value(key: str) -> int:
        return values[key] if key in values else value(targets[key])

    return _sums(rng, listed, keys, value)


def _sums(rng: random.Random, listed: str, keys: list[str], value: Callable[[str], int]) -> Question:
    lines = []
    for _ in range(NUM_SOLVED + 1):
        operands = rng.sample(keys, 3)
        lines.append((" + ".join(operands), str(sum(map(value, operands)))))
    solved = "".join(f"{question} = {answer}\n" for question, answer in lines[:-1])
    return Question(f"Pairs: {listed}.\n{solved}{lines[-1][0]} =", lines[-1][1])


def variables(rng: random.Random, chains: int = 3, hops: int = 2) -> Question:
    """`vt`: list all variables with a value, through shuffled assignments (Table 3, VT).

    As in RULER (arXiv 2404.06654), every solved example has a text of its own: examples on the assignments of
    the question would leave only the names of the answer.
    """
    size = hops + 1
    names = rng.sample(lexicon.THINGS, (NUM_SOLVED + 1) * chains * size)
    texts = []
    for start in range(0, len(names), chains * size):
        numbers = rng.sample(range(10, 100), chains)
        groups = [names[start + chain * size : start + (chain + 1) * size] for chain in range(chains)]
        assignments = [
            f"{name} = {before}"
            for group, number in zip(groups, numbers, strict=True)
            for name, before in zip(group, [number, *group], strict=False)
        ]
        rng.shuffle(assignments)
        order = {assignment.split()[0]: place for place, assignment in enumerate(assignments)}
        answer = " ".join(sorted(groups[0], key=order.__getitem__))
        texts.append((f"{'. '.join(assignments)}.\nAll that are {numbers[0]}:", answer))
    solved = "".join(f"{question} {answer}\n" for question, answer in texts[:-1])
    return Question(solved + texts[-1][0], texts[-1][1], any_order=True)


def common_words(rng: random.Random, common: int = 3, rare: int = 20, times: int = 4) -> Question:
    """`cwe`: list the most frequent words (Table 3, CWE); three word lists, two of them solved."""
    texts = []
    for _ in range(NUM_SOLVED + 1):
        words = rng.sample(lexicon.THINGS + lexicon.QUALITIES, common + rare)
        bag = words[:common] * times + words[common:]
        rng.shuffle(bag)
        answer = sorted(words[:common], key=bag.index)
        texts.append((f"Words: {' '.join(bag)}.\nThe {common} words that are there most:", " ".join(answer)))
    solved = "".join(f"{question} {answer}\n" for question, answer in texts[:-1])
    return Question(solved + texts[-1][0], texts[-1][1], any_order=True)


def draw_questions(task: str, *, count: int, seed: int, pairs: int) -> list[Question]:
    """Return the first `count` questions of a task; question i depends on (task, seed, i, pairs) only."""
    return [_TASKS[task](random.Random(f"{task} {seed} {i}"), pairs) for i in range(count)]


_TASKS: dict[str, Callable[[random.Random, int], Question]] = {
    "kv": key_value,
    "ar": lambda rng, pairs: sum_of_values(rng, min(pairs, MAX_SUM_PAIRS)),
    "ar_mh": lambda rng, pairs: sum_of_aliases(rng, min(pairs, MAX_SUM_PAIRS)),
    "vt": lambda rng, pairs: variables(rng),
    "cwe": lambda rng, pairs: common_words(rng),
}
TASKS = tuple(_TASKS)


BATCH_TOKENS = 1 << 14
"""Maximum padded tokens per forward pass."""
GPU_BATCH_TOKENS = 1 << 16
"""The same on a GPU, where smaller batches are bound by kernel launches."""


@dataclass(frozen=True)
class TaskScores:
    """Scores of a model on a set of questions."""

    logprobs: tuple[float, ...]
    """Log-probability of each correct answer, in nats."""
    exact: tuple[bool, ...]
    """Whether greedy decoding gives exactly the answer's tokens."""
    tokens: int
    """Tokens of all correct answers."""

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability per answer token, in nats."""
        return sum(self.logprobs) / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity of the answer tokens."""
        return exp(-self.mean_logprob)

    @property
    def accuracy(self) -> float:
        """Share of exact answers."""
        return sum(self.exact) / len(self.exact)


class QuestionSet:
    """Questions, encoded and padded once for several models.

    Padding is on the right, where it does not affect earlier tokens of a causal model.

    Args:
        max_length: context length of the models.

    Raises:
        ConfigError: a question exceeds `max_length`.
    """

    def __init__(
        self, questions: Sequence[Question], tokenizer: Any, device: torch.device, max_length: int
    ) -> None:
        self.questions = list(questions)
        encoded = []
        for question in questions:
            prompt = tokenizer.encode(question.prompt)
            answer = tokenizer.encode(f" {question.answer}", add_special_tokens=False)
            if len(prompt) + len(answer) > max_length:
                raise ConfigError(
                    f"a question has {len(prompt) + len(answer)} tokens, more than the teacher's "
                    f"{max_length}; lower --option num_pairs, or take another source of questions"
                )
            encoded.append((prompt, answer))
        self.prompts = [tuple(prompt) for prompt, _ in encoded]
        self.answer_tokens = [len(answer) for _, answer in encoded]
        order = sorted(range(len(encoded)), key=lambda i: sum(map(len, encoded[i])))
        max_tokens = GPU_BATCH_TOKENS if device.type == "cuda" else BATCH_TOKENS
        groups: list[list[int]] = [[]]
        for i in order:
            if (len(groups[-1]) + 1) * sum(map(len, encoded[i])) > max_tokens and groups[-1]:
                groups.append([])
            groups[-1].append(i)
        self._batches = [(group, _pad([encoded[i] for i in group]).to(device)) for group in groups]

    @torch.no_grad()
    def evaluate(self, model: Any) -> TaskScores:
        """Score the correct answers of all questions."""
        logprobs = [0.0] * len(self.questions)
        exact = [True] * len(self.questions)
        for group, batch in self._batches:
            hidden, targets = batch.select(hidden_states(model, batch)), batch.select(batch.labels)
            logits = LanguageModelHead.of(model).logits(hidden).float()
            scores = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0].double()
            assert batch.loss_indices is not None
            owners = batch.loss_indices // batch.labels.shape[1]
            empty = torch.zeros(len(group), dtype=torch.float64, device=scores.device)
            sums = empty.index_add(0, owners, scores).tolist()
            misses = empty.index_add(0, owners, (logits.argmax(-1) != targets).double()).tolist()
            for index, total, missed in zip(group, sums, misses, strict=True):
                logprobs[index], exact[index] = total, missed == 0
        return TaskScores(tuple(logprobs), tuple(exact), sum(self.answer_tokens))


class TaskSet:
    """Questions that a model answers right where the answer is the likeliest choice.

    Log-likelihoods are sums over the tokens of a choice (lm-eval's `acc`). Without choices, greedy decoding
    has to give the answer's tokens, as lm-eval scores LAMBADA.

    Args:
        questions, tokenizer, device, max_length: as `QuestionSet`.
        with_choices: False ignores the choices.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Any,
        device: torch.device,
        max_length: int,
        *,
        with_choices: bool = True,
    ) -> None:
        self._choices = [
            (each.answer, *(choice for choice in each.choices if with_choices and choice != each.answer))
            for each in questions
        ]
        every = [
            Question(question.prompt, choice)
            for question, choices in zip(questions, self._choices, strict=True)
            for choice in choices
        ]
        self._questions = QuestionSet(every, tokenizer, device, max_length)

    def evaluate(self, model: Any) -> tuple[float, float]:
        """Return accuracy, and the mean log-probability of a right answer in nats."""
        found = self._questions.evaluate(model)
        right, logprobs, start = 0, 0.0, 0
        for choices in self._choices:
            answer, *wrong = found.logprobs[start : start + len(choices)]
            right += answer > max(wrong) if wrong else found.exact[start]
            logprobs += answer
            start += len(choices)
        return right / len(self._choices), logprobs / len(self._choices)


def _pad(encoded: Sequence[tuple[list[int], list[int]]]) -> MicroBatch:
    """Prompts and answers as rows, with the answers in the loss."""
    width = max(len(prompt) + len(answer) for prompt, answer in encoded) - 1
    inputs, labels = torch.zeros(2, len(encoded), width, dtype=torch.int64)
    in_loss = torch.zeros(len(encoded), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(encoded):
        tokens = torch.tensor(prompt + answer)
        end = len(tokens) - 1
        inputs[row, :end], labels[row, :end] = tokens[:-1], tokens[1:]
        # The last token of the prompt predicts the first of the answer.
        in_loss[row, len(prompt) - 1 : end] = True
    return MicroBatch(inputs, labels, in_loss.flatten().nonzero()[:, 0])

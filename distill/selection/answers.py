"""How well a model answers: log-likelihood of the answers, and the share that it writes exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.batches import Batch
from evalsuite.distill.end_to_end import decode, head_weight
from evalsuite.distill.selection.questions import Question
from evalsuite.foundation import ConfigError

BATCH_TOKENS = 1 << 14
"""Most padded tokens of one forward pass."""
GPU_BATCH_TOKENS = 1 << 16
"""The same on a GPU, which runs shorter ones faster than Python launches them."""


@dataclass(frozen=True)
class Answered:
    """What a model makes of some questions."""

    logprobs: tuple[float, ...]
    """Of each right answer, nats."""
    exact: tuple[bool, ...]
    """Whether greedy decoding writes it, token for token."""
    tokens: int
    """Tokens of all right answers."""

    @property
    def nats(self) -> float:
        """Mean log-probability of an answer's token."""
        return sum(self.logprobs) / self.tokens

    @property
    def perplexity(self) -> float:
        """Of the answers' tokens."""
        return exp(-self.nats)

    @property
    def accuracy(self) -> float:
        """Share of exact answers."""
        return sum(self.exact) / len(self.exact)


@dataclass(frozen=True)
class _Rows:
    numbers: tuple[int, ...]
    inputs: Tensor
    places: Tensor
    """Of the tokens that predict an answer's, in the flattened rows."""
    targets: Tensor
    owners: Tensor
    """Which of `numbers` each target belongs to."""


class AnswerSet:
    """Questions as padded rows, once for all models that are asked.

    Rows are padded on the right, which no earlier token of a causal model can see.

    Args:
        positions: the most tokens that the models read.

    Raises:
        ConfigError: a question does not fit the models' positions.
    """

    def __init__(
        self, questions: Sequence[Question], tokenizer: Any, device: torch.device, positions: int
    ) -> None:
        self.questions = list(questions)
        encoded = []
        for question in questions:
            prompt = tokenizer.encode(question.prompt)
            answer = tokenizer.encode(f" {question.answer}", add_special_tokens=False)
            if len(prompt) + len(answer) > positions:
                raise ConfigError(
                    f"a synthetic question has {len(prompt) + len(answer)} tokens, the teacher reads "
                    f"{positions}; lower --option pairs"
                )
            encoded.append((prompt, answer))
        self.prompts = [tuple(prompt) for prompt, _ in encoded]
        self.answer_tokens = [len(answer) for _, answer in encoded]
        order = sorted(range(len(encoded)), key=lambda i: sum(map(len, encoded[i])))
        most = GPU_BATCH_TOKENS if device.type == "cuda" else BATCH_TOKENS
        self._batches: list[_Rows] = []
        group: list[int] = []
        for i in order:
            if group and (len(group) + 1) * sum(map(len, encoded[i])) > most:
                self._batches.append(_rows(group, encoded, device))
                group = []
            group.append(i)
        if group:
            self._batches.append(_rows(group, encoded, device))

    @torch.no_grad()
    def ask(self, model: Any) -> Answered:
        """Score the right answers of all questions."""
        logprobs = [0.0] * len(self.questions)
        exact = [True] * len(self.questions)
        for rows in self._batches:
            hidden = decode(model, Batch(rows.inputs, rows.inputs)).flatten(0, 1)[rows.places]
            logits = torch.nn.functional.linear(hidden, head_weight(model).to(hidden.dtype)).float()
            scores = logits.log_softmax(-1).gather(-1, rows.targets[:, None])[:, 0].double()
            right = logits.argmax(-1) == rows.targets
            count = len(rows.numbers)
            empty = torch.zeros(count, dtype=torch.float64, device=scores.device)
            sums = empty.index_add(0, rows.owners, scores).tolist()
            misses = empty.index_add(0, rows.owners, (~right).double()).tolist()
            for number, total, missed in zip(rows.numbers, sums, misses, strict=True):
                logprobs[number], exact[number] = total, missed == 0
        return Answered(tuple(logprobs), tuple(exact), sum(self.answer_tokens))


def _rows(group: list[int], encoded: list[tuple[list[int], list[int]]], device: torch.device) -> _Rows:
    width = max(len(encoded[i][0]) + len(encoded[i][1]) for i in group) - 1
    inputs = torch.zeros(len(group), width, dtype=torch.int64)
    places, targets, owners = [], [], []
    for row, i in enumerate(group):
        prompt, answer = encoded[i]
        tokens = prompt + answer
        inputs[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        # The last token of the prompt predicts the answer's first.
        places += [row * width + len(prompt) - 1 + j for j in range(len(answer))]
        targets += answer
        owners += [row] * len(answer)
    return _Rows(
        tuple(group),
        inputs.to(device),
        *(torch.tensor(values, dtype=torch.int64, device=device) for values in (places, targets, owners)),
    )

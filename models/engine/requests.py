"""What can be asked of an engine, and what it answers: token ids in, numbers and tokens out."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from evalsuite.foundation import ConfigError, content_hash

Finish = Literal["stop", "eos", "length", "error"]

REFUSED = "refused: "
"""Prefix of the error of a request that was never run; such an answer is asked again when the engine
would now accept it."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """How likely is each continuation after the context?

    Args:
        context: token ids that are read, at least one (BOS included if the model wants it).
        continuations: token ids that are scored, each at least one long.
    """

    context: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]

    def key(self) -> tuple[str, str, str, int]:
        """Return (verb, request hash, sampling, seed): what an answer is stored under, beside the engine."""
        return "score", content_hash([self.context, self.continuations]), "", 0

    def longest(self) -> int:
        """Number of tokens of the context and the longest continuation together."""
        return len(self.context) + max((len(tokens) for tokens in self.continuations), default=0)

    def refusal(self, max_length: int) -> str | None:
        """Return why this request cannot be answered by a model of `max_length` positions, or None."""
        if not self.context:
            return REFUSED + "the context is empty (give at least the BOS or prefix token)"
        if not self.continuations:
            return REFUSED + "there is no continuation to score"
        for number, tokens in enumerate(self.continuations):
            if not tokens:
                return REFUSED + f"continuation {number} is empty"
        # The last token of a continuation is predicted, never read.
        if self.longest() - 1 > max_length:
            return REFUSED + (
                f"context and continuation have {self.longest()} tokens, the model reads at most {max_length}"
            )
        return None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, and when to stop.

    Args:
        max_new_tokens: most tokens that are written.
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p: nucleus: smallest set of most likely tokens whose probability reaches it; 1 keeps all.
        top_k: number of most likely tokens kept; 0 keeps all.
        stop: texts at which generation ends; the answer is cut before the first of them.

    Temperature, top-k and top-p act in this order and with the definitions of transformers' logits
    processors. Raises ConfigError for values out of range.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens = {self.max_new_tokens}: must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature = {self.temperature}: must be 0 (greedy) or positive")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p = {self.top_p}: must be above 0 and at most 1")
        if self.top_k < 0:
            raise ConfigError(f"top_k = {self.top_k}: must be 0 (all tokens) or positive")
        if "" in self.stop:
            raise ConfigError("stop holds an empty string, which would end every answer at once")

    @property
    def greedy(self) -> bool:
        """Whether the answer does not depend on the seed."""
        return self.temperature == 0

    def key(self) -> str:
        """Return a short readable string, equal for samplings that give equal answers."""
        choice = "greedy" if self.greedy else f"t{self.temperature:g}-p{self.top_p:g}-k{self.top_k}"
        stop = f"-stop{content_hash(sorted(self.stop), 8)}" if self.stop else ""
        return f"{choice}-n{self.max_new_tokens}{stop}"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What does the model write after the prompt? The seed belongs to this request alone."""

    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int = 0

    def key(self) -> tuple[str, str, str, int]:
        """Return (verb, request hash, sampling, seed); greedy answers do not depend on the seed."""
        seed = 0 if self.sampling.greedy else self.seed
        return "generate", content_hash(self.prompt), self.sampling.key(), seed

    def limit(self, max_length: int) -> int:
        """Most tokens that can be written: `max_new_tokens`, or what is left of the model's positions."""
        return min(self.sampling.max_new_tokens, max_length - len(self.prompt) + 1)

    def refusal(self, max_length: int) -> str | None:
        """Return why this request cannot be answered by a model of `max_length` positions, or None."""
        if not self.prompt:
            return REFUSED + "the prompt is empty (give at least the BOS or prefix token)"
        if len(self.prompt) > max_length:
            return REFUSED + f"the prompt has {len(self.prompt)} tokens, the model reads at most {max_length}"
        return None


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """One entry per continuation: summed natural log-probability, greedy flag, number of tokens.

    `greedy` says whether every token of the continuation was the model's most likely one. An answer
    with an `error` has no entries: it is never a silent zero.
    """

    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]
    lengths: tuple[int, ...]
    error: str | None = None

    @staticmethod
    def failed(error: str) -> "ScoreAnswer":
        """Return the answer of a request that could not be scored."""
        return ScoreAnswer((), (), (), error)

    def row(self) -> dict[str, Any]:
        """Return a JSON-able form; floats survive exactly."""
        row: dict[str, Any] = {"logprobs": self.logprobs, "greedy": self.greedy, "lengths": self.lengths}
        return row | ({"error": self.error} if self.error else {})

    @staticmethod
    def from_row(row: dict[str, Any]) -> "ScoreAnswer":
        """Undo `row`."""
        return ScoreAnswer(
            tuple(row["logprobs"]), tuple(row["greedy"]), tuple(row["lengths"]), row.get("error")
        )


@dataclass(frozen=True, slots=True)
class GenerateAnswer:
    """What was written.

    Args:
        tokens: generated ids, without the end-of-sequence token; with a stop string they run to the
            token that completed it.
        text: the decoded tokens without special tokens, cut before the first stop string.
        finish: "stop" (a stop string), "eos", "length" (the token limit), or "error".
        error: the reason when finish is "error".
    """

    tokens: tuple[int, ...]
    text: str
    finish: Finish
    error: str | None = None

    @staticmethod
    def failed(error: str) -> "GenerateAnswer":
        """Return the answer of a request that could not be generated."""
        return GenerateAnswer((), "", "error", error)

    def row(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        row: dict[str, Any] = {"tokens": self.tokens, "text": self.text, "finish": self.finish}
        return row | ({"error": self.error} if self.error else {})

    @staticmethod
    def from_row(row: dict[str, Any]) -> "GenerateAnswer":
        """Undo `row`."""
        return GenerateAnswer(tuple(row["tokens"]), row["text"], row["finish"], row.get("error"))


Request = ScoreRequest | GenerateRequest
Answer = ScoreAnswer | GenerateAnswer

"""Types on both sides of the engine: the requests of a document, and the score of its responses."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.protocols.thinking import ThinkingRequest


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests of one document for one tokenizer, as token ids.

    Under log-likelihood, `score_requests` holds contexts with their continuations, and `choices` maps each
    choice to its request and continuation. Under generation, `prompt` is the text to continue.
    """

    doc_id: str
    context: int | None
    prompt_hash: str
    """Over the texts: the context with all choices, or the whole prompt."""
    score_requests: tuple[ScoreRequest, ...] = ()
    choices: tuple[tuple[int, int], ...] = ()
    prompt: tuple[int, ...] = ()
    in_reasoning: bool = False
    """Whether the prompt opens a block of reasoning, which the response continues."""
    close: tuple[int, ...] = ()
    """What closes a thought by force; empty without a thinking budget."""

    def generate_request(self, sampling: SamplingParams, seed: int) -> GenerateRequest:
        """Return the generation request for one seed."""
        if sampling.thinking_budget is None:
            return GenerateRequest(self.prompt, sampling, seed)
        return ThinkingRequest(self.prompt, sampling, seed, self.close, self.in_reasoning)

    def tokens_read(self, responses: Sequence[Any]) -> int:
        """Return the tokens of the longest text that a model read; the last one of a text is predicted only.

        Args:
            responses: to these requests.
        """
        if self.prompt:
            return len(self.prompt) + max(max(len(each.tokens) for each in responses) - 1, 0)
        return max(request.max_num_tokens() for request in self.score_requests) - 1

    def to_row(self) -> dict[str, Any]:
        """Return a JSON-serializable form."""
        row: dict[str, Any] = {
            "doc_id": self.doc_id,
            "context": self.context,
            "prompt_hash": self.prompt_hash,
        }
        if self.prompt:
            # Omitted where empty, so that equal requests are equal files.
            row |= {"prompt": self.prompt} | ({"in_reasoning": True} if self.in_reasoning else {})
            return row | ({"close": self.close} if self.close else {})
        requests = [
            {"context": each.context, "continuations": each.continuations} for each in self.score_requests
        ]
        return row | {"score_requests": requests, "choices": self.choices}

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "RequestSet":
        """Undo `to_row`."""
        return RequestSet(
            doc_id=row["doc_id"],
            context=row["context"],
            prompt_hash=row["prompt_hash"],
            score_requests=tuple(
                ScoreRequest(_tokens(each["context"]), tuple(map(_tokens, each["continuations"])))
                for each in row.get("score_requests", ())
            ),
            choices=tuple((request, number) for request, number in row.get("choices", ())),
            prompt=_tokens(row.get("prompt", ())),
            in_reasoning=row.get("in_reasoning", False),
            close=_tokens(row.get("close", ())),
        )


def _tokens(values: Sequence[int]) -> tuple[int, ...]:
    """Token ids of 31 bits. Raises ValueError or TypeError for anything else."""
    try:
        packed = array("i", values)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    if packed and min(packed) < 0:
        raise ValueError(f"{min(packed)} is no token id")
    return tuple(packed)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of the responses to one document."""

    values: Mapping[str, float]
    """Per metric."""
    chance: float | None
    outcome: str = "ok"
    detail: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, int] = field(default_factory=dict)
    """Per metric: index of the choice that it picks; without those that pick none."""
    error: str | None = None
    """Why there are no values."""
    undecided: bool = False
    """Whether there is a response that the scorer could not decide, and may decide later."""

    @staticmethod
    def from_error(
        error: str,
        chance: float | None,
        detail: Mapping[str, Any] | None = None,
        *,
        undecided: bool = False,
    ) -> "Score":
        """Return the score of a document without a response or a decision: no values, no silent zero."""
        return Score({}, chance, "error", detail or {}, error=error, undecided=undecided)


def chance_of(choices: Sequence[Any]) -> float | None:
    """Return the chance level of a document with these choices; None without any."""
    return 1 / len(choices) if choices else None

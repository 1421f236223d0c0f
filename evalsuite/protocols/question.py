"""What a protocol makes of a document, and what it makes of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalsuite.models.engine.requests import GenerateRequest, Sampling, ScoreRequest


@dataclass(frozen=True, slots=True)
class Question:
    """One document, rendered for one tokenizer: token ids, and which answer belongs where.

    Under log-likelihood, `scores` holds what must be scored and `places` says for each choice which
    request and which of its continuations is meant. Under generation, `prompt` is what is continued.
    """

    doc_id: str
    context: int | None
    prompt_hash: str
    """Over the texts: the context with all choices, or the whole prompt."""
    scores: tuple[ScoreRequest, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    prompt: tuple[int, ...] = ()

    def generation(self, sampling: Sampling, seed: int) -> GenerateRequest:
        """The request that makes a model write, once per seed."""
        return GenerateRequest(self.prompt, sampling, seed)

    def row(self) -> dict[str, Any]:
        """A JSON-able form."""
        row: dict[str, Any] = {
            "doc_id": self.doc_id,
            "context": self.context,
            "prompt_hash": self.prompt_hash,
        }
        if self.prompt:
            return row | {"prompt": self.prompt}
        scores = [{"context": each.context, "continuations": each.continuations} for each in self.scores]
        return row | {"scores": scores, "places": self.places}

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> "Question":
        """Undo `row`."""
        return Question(
            doc_id=row["doc_id"],
            context=row["context"],
            prompt_hash=row["prompt_hash"],
            scores=tuple(
                ScoreRequest(tuple(each["context"]), tuple(tuple(part) for part in each["continuations"]))
                for each in row.get("scores", ())
            ),
            places=tuple((request, number) for request, number in row.get("places", ())),
            prompt=tuple(row.get("prompt", ())),
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a harness made of the answers to one question."""

    values: Mapping[str, float]
    chance: float | None
    outcome: str = "ok"
    detail: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def failed(error: str, chance: float | None) -> "Judgement":
        """A question that got no answer: it has no values and is never a silent zero."""
        return Judgement({}, chance, "error", {"error": error})


def one_in(choices: Sequence[Any]) -> float | None:
    """Chance level of a question with these choices; None without any."""
    return 1 / len(choices) if choices else None

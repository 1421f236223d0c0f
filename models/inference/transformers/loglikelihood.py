"""Log-likelihoods by forward passes over whole texts: context and continuation together."""

from collections.abc import Sequence

from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.batching import RequestBatch, make_length_batches
from evalsuite.models.inference.logprobs import ScoredBatch, TargetIndex
from evalsuite.models.inference.proof import Text
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.transformers.runner import PlainRunner


def make_batches(
    requests: Sequence[ScoreRequest], indices: Sequence[int], limits: BatchLimits
) -> list[RequestBatch]:
    """Batch requests of similar length, the longest first."""
    lengths = [requests[index].max_num_tokens() - 1 for index in indices]
    others = [
        length * (len(requests[index].continuations) - 1)
        for index, length in zip(indices, lengths, strict=True)
    ]
    batches = make_length_batches(
        lengths, max_tokens=limits.max_tokens, min_tokens=limits.min_tokens, unpadded_tokens=others
    )
    return [RequestBatch([indices[place] for place in batch]) for batch in batches]


class PlainLoglikelihoodBatch(ScoredBatch):
    """Log-likelihoods of some requests, computed on construction.

    Every text is read once: continuations of one token share the text that is their context.
    """

    def __init__(self, runner: PlainRunner, requests: Sequence[ScoreRequest], limits: BatchLimits) -> None:
        super().__init__(requests, runner.vocab_size, limits)
        self._runner = runner
        targets: dict[Text, TargetIndex] = {}
        for request, slot in zip(requests, self._slots, strict=True):
            first = len(request.context) - 1
            for number, continuation in enumerate(request.continuations):
                # The last token is predicted, never read.
                text = request.context + continuation[:-1]
                targets.setdefault(text, TargetIndex()).add(first, [continuation], slot + number)
        texts = list(targets)
        for batch in runner.batches([len(text) for text in texts], limits.max_tokens):
            self._read([(texts[place], targets[texts[place]]) for place in batch])

    def _read(self, batch: list[tuple[Text, TargetIndex]]) -> None:
        first = min(targets.first[0] for _, targets in batch)
        length = max(len(text) for text, _ in batch) - first
        if length * len(batch) > self._max_rows and len(batch) > 1:
            half = len(batch) // 2
            self._read(batch[:half])
            self._read(batch[half:])
            return
        logits = self._runner.logits([text for text, _ in batch], first)
        joined = TargetIndex()
        for number, (_, targets) in enumerate(batch):
            joined.extend(targets, number * length - first)
        self._score(lambda rows: rows, logits, joined)

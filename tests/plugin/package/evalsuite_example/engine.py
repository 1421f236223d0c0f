"""An engine: plain transformers, which reads the whole text again for every choice and token."""

from collections.abc import Iterator, Sequence

import torch

from evalsuite.models.checkpoints.fingerprint import fingerprint
from evalsuite.models.checkpoints.load import Checkpoint, load_checkpoint
from evalsuite.models.inference import (
    EngineSettings,
    EngineType,
    GenerateRequest,
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
)
from evalsuite.models.inference.stopping import StopChecker, eos_token_ids

EVALSUITE_API = 1


class Rereading(EngineType):
    """Plain transformers without a cache: slow, and right for every architecture."""

    display_name = "rereading"

    def __init__(self, checkpoint: Checkpoint, settings: EngineSettings) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.model.eval()
        self.weights_id = checkpoint.weights_id
        self.max_length = int(self.model.config.get_text_config().max_position_embeddings)
        self.versions = {"device": settings.device, "dtype": settings.dtype, "torch": torch.__version__}
        self.fingerprint = fingerprint(self.weights_id, settings.dtype, self.name, self.versions)

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> "Rereading":
        checkpoint = load_checkpoint(
            path,
            dtype=settings.dtype,
            device=settings.device,
            trust_remote_code=settings.trust_remote_code,
            label=settings.label,
        )
        return cls(checkpoint, settings)

    @property
    def label(self) -> str:
        return self.checkpoint.label

    def _logprobs(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return log-probabilities [T, V] of the token after each position."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        with torch.inference_mode():
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False).logits[0]
            return logits.float().log_softmax(-1)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        for index, request in enumerate(requests):
            if error := request.validation_error(self.max_length):
                yield index, ScoreResponse.from_error(error)
                continue
            logprobs, greedy = [], []
            for continuation in request.continuations:
                found = self._logprobs((*request.context, *continuation))[len(request.context) - 1 : -1]
                wanted = torch.tensor(continuation, device=found.device)
                logprobs.append(float(found.gather(1, wanted[:, None]).sum()))
                greedy.append(bool((found.argmax(-1) == wanted).all()))
            lengths = tuple(map(len, request.continuations))
            yield index, ScoreResponse(tuple(logprobs), tuple(greedy), lengths)

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        tokenizer = self.checkpoint.tokenizer
        eos = eos_token_ids(self.model.config, tokenizer, self.model.generation_config)
        for index, request in enumerate(requests):
            error = request.validation_error(self.max_length)
            if error is None and not request.sampling.greedy:
                error = f"engine {self.name} is greedy only"
            if error is not None:
                yield index, GenerateResponse.from_error(error)
                continue
            tokens, response = list(request.prompt), None
            checker = StopChecker(tokenizer, request.sampling, request.token_limit(self.max_length), eos)
            while response is None:
                tokens.append(int(self._logprobs(tokens)[-1].argmax()))
                response = checker.append(tokens[-1:])
            yield index, response

    def close(self) -> None:
        """Nothing to release."""

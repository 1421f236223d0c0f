"""A stand-in engine whose answers follow from the request alone, and the pocket tokenizer."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from evalsuite.evaluation.checkpoints import LocalCheckpoint, tokenizer_id
from evalsuite.models.inference.requests import GenerateRequest, GenerateResponse, ScoreRequest, ScoreResponse
from evalsuite.tasks.synthetic.pocket import build_tokenizer


def logprob(*parts: object) -> float:
    """A log-probability that follows from its arguments."""
    return -9 * int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 16**8


class FakeEngine:
    """Likes some continuations better than others, and writes back the last word it read."""

    name = "fake"
    max_length = 100_000

    def __init__(self, label: str, weights_id: str, tokenizer: Any) -> None:
        self.label = label
        self.weights_id = weights_id
        self.versions = {"device": "fake", "dtype": "float32"}
        self.fingerprint = hashlib.sha256(label.encode()).hexdigest()[:16]
        self.notice = ""
        self.tokenizer = tokenizer
        self.requests: list[Any] = []

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        for number, request in reversed(list(enumerate(requests))):
            self.requests.append(request)
            logprobs = tuple(logprob(self.label, request.context, each) for each in request.continuations)
            yield (
                number,
                ScoreResponse(logprobs, (False,) * len(logprobs), tuple(map(len, request.continuations))),
            )

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        for number, request in reversed(list(enumerate(requests))):
            self.requests.append(request)
            text = " " + self.tokenizer.decode(request.prompt[-3:]).strip()
            yield number, GenerateResponse(request.prompt[-3:], text, "stop")

    def close(self) -> None:
        """Nothing to release."""


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """The pocket tokenizer, with the ends that a model needs."""
    return PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), bos_token="<s>", eos_token="</s>")


class Crew:
    """Checkpoints that exist only as labels; loading one gives its FakeEngine."""

    logprob = staticmethod(logprob)

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.engines: list[FakeEngine] = []
        self.training: dict[str, Path] = {}
        self.positions = 2048
        self.weights: dict[str, str] = {}
        """Path → weights_id, where it is not ``weights-PATH``."""

    def describe_checkpoints(
        self, checkpoints: Sequence[str], teacher: str | None, **_: object
    ) -> list[LocalCheckpoint]:
        paths = [teacher, *checkpoints] if teacher else checkpoints
        return [
            LocalCheckpoint(
                label=path,
                path=path,
                role="teacher" if path == teacher else "student",
                weights_id=self.weights_id(path),
                tokenizer=tokenizer_id(self.tokenizer),
                text_tokenizer=self.tokenizer,
                positions=self.positions,
                parameters=1000,
                lineage={},
                training=self.training.get(path),
            )
            for path in paths
        ]

    def weights_id(self, path: str) -> str:
        """Return the weights that lie at a path."""
        return self.weights.get(path, f"weights-{path}")

    def engine_factory(self, *_: object, **__: object) -> Callable[[str, str | None], FakeEngine]:
        def make(path: str, label: str | None) -> FakeEngine:
            self.engines.append(FakeEngine(label or path, self.weights_id(path), self.tokenizer))
            return self.engines[-1]

        return make

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Replace checkpoints and engines of runs by these."""
        patch.setattr("evalsuite.evaluation.inputs.locate_here", lambda path: None)
        patch.setattr("evalsuite.evaluation.checkpoints.describe_checkpoints", self.describe_checkpoints)
        patch.setattr("evalsuite.evaluation.inference.engines.engine_factory", self.engine_factory)

    @property
    def computed(self) -> int:
        """Requests that were answered so far."""
        return sum(len(engine.requests) for engine in self.engines)


@pytest.fixture
def crew(tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Replace checkpoints and engines by stand-ins."""
    made = Crew(tokenizer)
    made.install(monkeypatch)
    return made


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Four small benchmarks: both protocols, one protocol, needles at two lengths, and letters."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "name: small\ntitle: Small\nlimit: 4\nbenchmarks:\n"
        "  - pocket_facts\n  - pocket_instructions\n"
        "  - {benchmark: pocket_niah_single_1, contexts: [128, 256], limit: 2}\n"
    )
    return path


@pytest.fixture(scope="session")
def make_llama(tokenizer: PreTrainedTokenizerFast) -> Callable[[Path, int], Path]:
    """Write a real checkpoint: a Llama of two small layers with the pocket tokenizer and random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(folder: Path, seed: int) -> Path:
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            initializer_range=0.2,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny(make_llama: Callable[[Path, int], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One such checkpoint."""
    return make_llama(tmp_path_factory.mktemp("tiny"), 0)

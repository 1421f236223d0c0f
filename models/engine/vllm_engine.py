"""The vLLM engine: vLLM lives in an environment of its own and is reached as a subprocess.

Its pins never meet ours in one resolver. The environment's Python is given by `EVALSUITE_VLLM_PYTHON`, or is
this one if it happens to have vLLM.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from evalsuite.foundation import ConfigError, EvalsuiteError, canonical_json
from evalsuite.models.checkpoints import POCKET, CheckpointInfo
from evalsuite.models.engine.requests import (
    GenerateAnswer,
    GenerateRequest,
    ScoreAnswer,
    ScoreRequest,
)
from evalsuite.models.engine.stops import Ending, eos_ids
from evalsuite.models.engine.vllm_process import VllmProcess, check_environment, find_python
from evalsuite.models.identity import fingerprint
from evalsuite.models.student import StudentConfig
from evalsuite.models.vllm_plugin.refusals import check_arguments, check_student

CHUNK = 1024
SPECULATIVE = (
    "speculative_config",
    "speculative_model",
    "num_speculative_tokens",
    "spec_method",
    "spec_model",
    "spec_tokens",
)
"""Arguments of vLLM that ask for speculative decoding."""
OURS = {
    "model": "the checkpoint",
    "tokenizer": "the checkpoint",
    "dtype": "--dtype",
    "max_model_len": "the checkpoint's config",
}
"""Arguments of vLLM that are settled already, and by what."""


class VllmEngine:
    """Answers requests with vLLM. Starts it when first asked; `close` (or `with`) ends it.

    Args:
        info: the checkpoint, as a folder or hub id; vLLM loads it itself.
        dtype: "auto", "float32", "bfloat16" or "float16".
        max_length: most positions read; None takes the config's `max_position_embeddings`. One less is
            usable, because vLLM always writes a token.
        python: Python of the environment that has vLLM.
        arguments: more arguments of `vllm.LLM`, such as `tensor_parallel_size`. They enter the fingerprint.
        process: a running vLLM (made with `students=True` if this is one) to load the checkpoint into in
            place of what it holds. It is not closed here.

    Raises:
        MissingDependencyError: no such environment, or a version of vLLM that was not tested.
        ConfigError: a checkpoint that vLLM cannot load, or arguments that it cannot be served with.
        EvalsuiteError: vLLM failed; the end of its log is in the message.
    """

    name = "vllm"

    def __init__(
        self,
        info: CheckpointInfo,
        *,
        dtype: str = "auto",
        max_length: int | None = None,
        python: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        process: VllmProcess | None = None,
    ) -> None:
        if info.path.endswith(".gguf"):
            raise ConfigError(f"{info.path}: vLLM reads folders, not GGUF files; save the checkpoint as one")
        self.arguments = dict(arguments or {})
        if speculative := [name for name in SPECULATIVE if self.arguments.get(name) is not None]:
            raise ConfigError(f"{speculative[0]}: speculative decoding is not evaluated; leave it out")
        self.student = isinstance(info.config, StudentConfig)
        if settled := [name for name in OURS if name in self.arguments]:
            raise ConfigError(f"{settled[0]}: {OURS[settled[0]]} says that to vLLM; leave it out")
        ranks = self.arguments.get("tensor_parallel_size", 1)
        if type(ranks) is not int or ranks < 1:
            raise ConfigError(f"tensor_parallel_size = {ranks}: must be a whole number of at least 1")
        if self.student:
            check_arguments(self.arguments)
            check_student(info.config, ranks)
        self.info = info
        self.dtype = dtype
        self._given = process
        self.cached_tokens = 0
        """Prompt tokens that `generate` found in vLLM's prefix cache so far."""
        self._model_length = max_length or info.config.get_text_config().max_position_embeddings
        self.max_length = self._model_length - 1
        self._python = None if process is not None else find_python(python)
        if self._python is not None:
            check_environment(self._python)
        path = POCKET if info.path == "pocket" else Path(info.path).expanduser()
        self._model = str(path.resolve()) if path.is_dir() else info.path
        self.eos = eos_ids(info.config, info.tokenizer, _generation_config(self._model))

    @cached_property
    def _running(self) -> tuple[VllmProcess, dict[str, str]]:
        """vLLM with this checkpoint, and the versions of what computes."""
        settings = {
            "model": self._model,
            "dtype": self.dtype,
            "max_length": self._model_length,
            "student": self.student,
            "arguments": self.arguments,
        }
        if self._given is not None:
            return self._given, self._given.start(settings)
        assert self._python is not None
        process = VllmProcess(self._python, students=self.student)
        try:
            return process, process.start(settings)
        except EvalsuiteError:
            process.close()
            raise

    @property
    def versions(self) -> dict[str, str]:
        """Of vLLM and what it computes with, and its `device`. Starts vLLM."""
        return self._running[1]

    @cached_property
    def fingerprint(self) -> str:
        """See `Engine.fingerprint`. Starts vLLM, which knows its versions."""
        versions = dict(self.versions)
        engine = f"vllm/{versions.pop('device')}"
        if self.arguments:
            engine += f" {canonical_json(self.arguments)}"
        return fingerprint(self.info.weights_id, self.dtype, engine, versions)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreAnswer]]:
        """See `Engine.score`. vLLM reads the context once per continuation."""
        runnable: list[int] = []
        for index, request in enumerate(requests):
            if refusal := request.refusal(self.max_length):
                yield index, ScoreAnswer.failed(refusal)
            else:
                runnable.append(index)
        for start in range(0, len(runnable), CHUNK):
            chunk = runnable[start : start + CHUNK]
            rows = [
                {"tokens": requests[index].context + continuation, "start": len(requests[index].context)}
                for index in chunk
                for continuation in requests[index].continuations
            ]
            found = iter(self._running[0].ask("score", rows))
            for index in chunk:
                continuations = requests[index].continuations
                answers = [next(found) for _ in continuations]
                logprobs = tuple(answer["logprob"] for answer in answers)
                if not all(map(math.isfinite, logprobs)):
                    yield index, ScoreAnswer.failed("the model's log-probabilities are not finite")
                    continue
                greedy = tuple(answer["greedy"] for answer in answers)
                yield index, ScoreAnswer(logprobs, greedy, tuple(map(len, continuations)))

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateAnswer]]:
        """See `Engine.generate`. Seeded draws are vLLM's own and differ from the torch engine's."""
        runnable: list[int] = []
        for index, request in enumerate(requests):
            if refusal := request.refusal(self.max_length):
                yield index, GenerateAnswer.failed(refusal)
            else:
                runnable.append(index)
        for start in range(0, len(runnable), CHUNK):
            chunk = runnable[start : start + CHUNK]
            endings = [self._ending(requests[index]) for index in chunk]
            rows = [
                {
                    "tokens": requests[index].prompt,
                    "limit": ending.limit,
                    "temperature": requests[index].sampling.temperature,
                    "top_p": requests[index].sampling.top_p,
                    "top_k": requests[index].sampling.top_k,
                    "seed": requests[index].seed,
                    "stop": ending.stops,
                    "stop_tokens": sorted(self.eos | ending.stop_ids),
                }
                for index, ending in zip(chunk, endings, strict=True)
            ]
            found = self._running[0].ask("generate", rows)
            for index, ending, answer in zip(chunk, endings, found, strict=True):
                self.cached_tokens += answer.get("cached", 0)
                # One rule for all engines says where an answer ends and what its text is.
                ended = ending.extend(answer["tokens"])
                yield index, ended or GenerateAnswer.failed("vLLM stopped without a reason")

    def _ending(self, request: GenerateRequest) -> Ending:
        return Ending(self.info.tokenizer, request.sampling, request.limit(self.max_length), self.eos)

    def close(self) -> None:
        """End vLLM if this started it."""
        running = self.__dict__.pop("_running", None)
        if running is not None and self._given is None:
            running[0].close()

    def __enter__(self) -> "VllmEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _generation_config(model: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:
        return None  # A checkpoint need not have one.

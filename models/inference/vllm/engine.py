"""The vLLM engine: vLLM runs in its own environment, as a subprocess.

Its pinned dependencies therefore never conflict with ours. `EVALSUITE_VLLM_PYTHON` names the environment's
Python; the default is the current one if vLLM is installed there.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig

from evalsuite.foundation import ConfigError, EvalsuiteError, canonical_json
from evalsuite.models.checkpoints.fingerprint import STUDENT_SOURCE, fingerprint, plugin_versions, source_hash
from evalsuite.models.checkpoints.load import CheckpointInfo, describe_checkpoint
from evalsuite.models.checkpoints.positions import stated_positions
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.inference.registry import ENGINES, EngineSettings, EngineType
from evalsuite.models.inference.requests import (
    GenerateRequest,
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
    split_valid,
)
from evalsuite.models.inference.stopping import StopChecker, eos_token_ids
from evalsuite.models.inference.vllm.process import VllmProcess, check_environment, find_python
from evalsuite.models.vllm_plugin.validation import validate_args, validate_student

if TYPE_CHECKING:
    from evalsuite.models.benchmark.subject import Benchmark

SOURCE = ("inference/vllm", "inference/stopping.py", "checkpoints/tokenizers.py")
"""Our code that computes the responses of every model; the fingerprint covers it."""
CHUNK_SIZE = 1024
"""Requests per message to the worker."""
SPECULATIVE_ARGS = (
    "speculative_config",
    "speculative_model",
    "num_speculative_tokens",
    "spec_method",
    "spec_model",
    "spec_tokens",
)
"""Arguments of vLLM that enable speculative decoding."""
RESERVED_ARGS = {
    "model": "the checkpoint",
    "tokenizer": "the checkpoint",
    "dtype": "--dtype",
    "max_model_len": "the checkpoint's config",
}
"""Arguments of vLLM that evalsuite sets itself, and their source."""


@ENGINES.register("vllm")
class VllmEngine(EngineType):
    """Runs requests in vLLM, which starts on first use and is stopped by `close` (or `with`).

    Args:
        info: the checkpoint, as a folder or hub id; vLLM loads it itself.
        dtype: "auto", "float32", "bfloat16" or "float16".
        max_length: maximum number of positions; None uses the config's `max_position_embeddings`. One less is
            usable, because vLLM always generates a token.
        python: Python of the environment that has vLLM.
        arguments: additional arguments of `vllm.LLM`, such as `tensor_parallel_size`; part of the
        fingerprint.
        process: a running `VllmProcess` (with `students=True` if this is a student) whose model is replaced
            by this checkpoint. The caller closes it.

    Raises:
        MissingDependencyError: no such environment, or an untested version of vLLM.
        ConfigError: a checkpoint that vLLM cannot load, or unsupported arguments.
        EvalsuiteError: vLLM failed; the message has the cause from its log.
    """

    display_name = "vLLM"
    arguments_help = "arguments of vllm.LLM, e.g. tensor_parallel_size=2 enforce_eager=true"
    chooses_devices = True
    opens_unloaded = True

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
        if speculative := [name for name in SPECULATIVE_ARGS if self.arguments.get(name) is not None]:
            raise ConfigError(f"{speculative[0]}: speculative decoding is not supported; remove it")
        self.student = isinstance(info.config, StudentConfig)
        if reserved := [name for name in RESERVED_ARGS if name in self.arguments]:
            name = reserved[0]
            raise ConfigError(f"{name}: set by {RESERVED_ARGS[name]}; remove it from the engine arguments")
        ranks = self.arguments.get("tensor_parallel_size", 1)
        if type(ranks) is not int or ranks < 1:
            raise ConfigError(f"tensor_parallel_size = {ranks}: must be an integer of at least 1")
        if (replicas := self.arguments.get("data_parallel_size", 1)) != 1:
            raise ConfigError(
                f"data_parallel_size = {replicas}: one vllm.LLM is one replica; --executor-args "
                "num_workers=N starts one per GPU"
            )
        if self.student:
            validate_args(self.arguments)
            validate_student(info.config, ranks)
        self.info = info
        self.dtype = dtype
        self._external_process = process
        self.cached_tokens = 0
        """Number of prompt tokens that `generate` found in vLLM's prefix cache so far."""
        positions = max_length or stated_positions(info.config)
        if positions is None:
            raise ConfigError(
                f"{info.path}: vLLM needs a number of positions, and {type(info.config).__name__} states "
                "none; leave --engine vllm out"
            )
        self._model_length = positions
        self.max_length = self._model_length - 1
        self._python = None if process is not None else find_python(python)
        if self._python is not None:
            check_environment(self._python)
        # The folder that was described: by its name vLLM might load another commit of a hub model.
        self._model = str((info.folder or Path(info.path).expanduser()).resolve())
        self.eos_ids = eos_token_ids(info.config, info.tokenizer, _generation_config(self._model))

    @classmethod
    def gpus(cls, arguments: Mapping[str, Any]) -> int:
        """Return its ranks."""
        return int(arguments.get("tensor_parallel_size", 1))

    @classmethod
    def open(cls, path: str, settings: EngineSettings) -> "VllmEngine":
        """Leaves the device to vLLM."""
        info = describe_checkpoint(path, trust_remote_code=settings.trust_remote_code, shares_tokenizer=True)
        trusted = {"trust_remote_code": True} if settings.trust_remote_code else {}
        return cls(info, dtype=settings.dtype, arguments={**trusted, **settings.arguments})

    @property
    def label(self) -> str:
        return self.info.label

    def benchmark(self) -> "Benchmark":
        from evalsuite.models.inference.vllm.benchmark import VllmBenchmark

        return VllmBenchmark(self.info, self)

    @cached_property
    def _running(self) -> tuple[VllmProcess, dict[str, str]]:
        """The process with this checkpoint loaded, and the versions that affect its numerics."""
        settings = {
            "model": self._model,
            "dtype": self.dtype,
            "max_length": self._model_length,
            "student": self.student,
            "arguments": self.arguments,
        }
        if self._external_process is not None:
            return self._external_process, self._external_process.start(settings)
        assert self._python is not None
        process = VllmProcess(self._python, students=self.student)
        try:
            return process, process.start(settings)
        except EvalsuiteError:
            process.close()
            raise

    @property
    def weights_id(self) -> str:
        return self.info.weights_id

    @property
    def versions(self) -> dict[str, str]:
        """Versions of vLLM and its dependencies, our own source, and its `device`. Starts vLLM."""
        source = SOURCE + ((*STUDENT_SOURCE, "vllm_plugin") if self.student else ())
        plugins = plugin_versions(self.info.config) if self.student else {}
        return {**self._running[1], "source": source_hash(*source), **plugins}

    @cached_property
    def fingerprint(self) -> str:
        """Starts vLLM, which reports its versions."""
        versions = dict(self.versions)
        engine = f"vllm/{versions.pop('device')}"
        if self.arguments:
            engine += f" {canonical_json(self.arguments)}"
        return fingerprint(self.info.weights_id, self.dtype, engine, versions)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        """Prefills the context once per continuation."""
        valid, refused = split_valid(requests, lambda request: request.validation_error(self.max_length))
        for index, error in refused:
            yield index, ScoreResponse.from_error(error)
        for start in range(0, len(valid), CHUNK_SIZE):
            chunk = valid[start : start + CHUNK_SIZE]
            rows = [
                {"tokens": requests[index].context + continuation, "start": len(requests[index].context)}
                for index in chunk
                for continuation in requests[index].continuations
            ]
            results = iter(self._running[0].call("score", rows))
            for index in chunk:
                continuations = requests[index].continuations
                scored = [next(results) for _ in continuations]
                logprobs = tuple(result["logprob"] for result in scored)
                if not all(map(math.isfinite, logprobs)):
                    yield index, ScoreResponse.from_error("the model's log-probabilities are not finite")
                    continue
                greedy = tuple(result["greedy"] for result in scored)
                yield index, ScoreResponse(logprobs, greedy, tuple(map(len, continuations)))

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        """Random draws differ from the torch engine's for the same seed."""
        valid, refused = split_valid(requests, lambda request: request.validation_error(self.max_length))
        for index, error in refused:
            yield index, GenerateResponse.from_error(error)
        for start in range(0, len(valid), CHUNK_SIZE):
            chunk = valid[start : start + CHUNK_SIZE]
            checkers = [self._stop_checker(requests[index]) for index in chunk]
            rows = [
                {
                    "tokens": requests[index].prompt,
                    "limit": checker.limit,
                    "temperature": requests[index].sampling.temperature,
                    "top_p": requests[index].sampling.top_p,
                    "top_k": requests[index].sampling.top_k,
                    "seed": requests[index].seed,
                    "stop": checker.stop_strings,
                    "stop_tokens": sorted(self.eos_ids | checker.stop_ids),
                }
                for index, checker in zip(chunk, checkers, strict=True)
            ]
            results = self._running[0].call("generate", rows)
            for index, checker, result in zip(chunk, checkers, results, strict=True):
                self.cached_tokens += result.get("cached", 0)
                # Stopping and detokenization follow the same code in all engines.
                response = checker.append(result["tokens"])
                yield index, response or GenerateResponse.from_error("vLLM stopped without a reason")

    def _stop_checker(self, request: GenerateRequest) -> StopChecker:
        limit = request.token_limit(self.max_length)
        return StopChecker(self.info.tokenizer, request.sampling, limit, self.eos_ids)

    def close(self) -> None:
        """Stop vLLM if this engine started it."""
        running = self.__dict__.pop("_running", None)
        if running is not None and self._external_process is None:
            running[0].close()

    def __enter__(self) -> "VllmEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _generation_config(model: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:
        return None  # generation_config.json is optional.

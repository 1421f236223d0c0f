"""The configuration of a run: the same settings from flags, YAML and Python, and refused combinations."""

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli.commands import run as run_command
from evalsuite.cli.entry import build_parser, main
from evalsuite.config import PHASES, RunConfig, flag_of, read_run_config
from evalsuite.evaluation import estimate_run, evaluate
from evalsuite.foundation import ConfigError, RunFolderError
from tests.evaluation.runs import evaluate_quietly

VALUES: dict[str, tuple[list[str], Any]] = {
    "suite": (["quick"], "quick"),
    "checkpoints": (["--checkpoint", "a", "b"], ["a", "b"]),
    "teacher": (["--teacher", "t"], "t"),
    "out": (["--out", "o"], "o"),
    "limit": (["--limit", "3"], 3),
    "max_length": (["--max-length", "4096"], 4096),
    "skip_missing": (["--skip-missing"], True),
    "strict": (["--strict"], True),
    "data": (["--data", "d"], "d"),
    "engine": (["--engine", "vllm"], "vllm"),
    "engine_args": (["--engine-args", "seed=1"], {"seed": 1}),
    "executor": (["--executor", "other"], "other"),
    "executor_args": (["--executor-args", "num_workers=2"], {"num_workers": 2}),
    "cache": (["--no-cache"], False),
    "device": (["--device", "cpu"], "cpu"),
    "dtype": (["--dtype", "float16"], "float16"),
    "trust_remote_code": (["--trust-remote-code"], True),
    "phases": (["--infer-only"], ["infer"]),
    "protocols": (["--protocol", "generation"], ["generation"]),
    "benchmarks": (["--benchmarks", "a,b", "c"], ["a,b", "c"]),
    "export_shard": (["--export-shard", "x.tar.xz"], "x.tar.xz"),
    "merge_shards": (["--merge-shards", "x.tar.xz"], ["x.tar.xz"]),
    "workers": (["--workers", "2"], 2),
    "track": (["--track", "tensorboard"], "tensorboard"),
    "quiet": (["--quiet"], True),
}
"""Field → its flags and its value in YAML."""
ONLY = {phase: [f"--{phase}-only"] for phase in PHASES}


def configure(*argv: str) -> RunConfig:
    """Return what the command line makes of its arguments."""
    return run_command.run_config(build_parser().parse_args(["run", *argv]))


def comparable(config: RunConfig) -> dict[str, Any]:
    """Return the settings, with paths as text."""
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    return json.loads(json.dumps(values, default=str)) | {"workers": config.workers}


def writable(path: Path, values: dict[str, Any]) -> Path:
    """Write settings as YAML; JSON is YAML."""
    path.write_text(json.dumps(values))
    return path


def test_every_setting_has_a_flag_and_every_flag_is_a_setting() -> None:
    names = [each.name for each in fields(RunConfig)]
    assert set(VALUES) == set(names)
    parser = build_parser().parse_args(["run", "s", "--out", "o"]).__class__
    assert parser is argparse.Namespace
    for each in fields(RunConfig):
        if each.name not in ("suite", "phases"):
            assert flag_of(each) == VALUES[each.name][0][0]


@pytest.mark.parametrize("phase", [*PHASES, None])
def test_flags_file_and_python_give_the_same_configuration(phase: Any, tmp_path: Path) -> None:
    values = {
        each.name: VALUES[each.name][1]
        for each in fields(RunConfig)
        if each.name not in ("phases", "strict")
        and (
            not (readers := each.metadata.get("phases"))
            or (phase in readers if phase else not each.metadata["alone"])
        )
    }
    argv = [word for name in values for word in VALUES[name][0]]
    values |= {"phases": [phase]} if phase else {}
    # The positional argument comes first: a list option would swallow it.
    from_flags = configure(*argv, *(ONLY[phase] if phase else []))
    from_file = read_run_config(writable(tmp_path / "run.yaml", values))
    assert comparable(from_flags) == comparable(from_file) == comparable(RunConfig(**values))
    assert comparable(configure("--config", str(tmp_path / "run.yaml"))) == comparable(from_file)


def test_flags_take_precedence_over_the_file(tmp_path: Path) -> None:
    file = writable(tmp_path / "run.yaml", {"suite": "quick", "checkpoints": ["a"], "out": "o", "limit": 5})
    config = configure("--config", str(file), "--limit", "7", "--checkpoint", "b", "c")
    assert (config.limit, config.checkpoints, config.suite) == (7, ("b", "c"), "quick")
    # The file describes a whole run; one phase of it reads what it needs.
    config = configure("--config", str(file), "--infer-only")
    assert (config.limit, config.checkpoints, config.phases) == (None, ("a",), ("infer",))


def pairs() -> Iterator[tuple[str, str]]:
    """Every setting with every choice of phases that does not read it."""
    for setting, phase in itertools.product(fields(RunConfig), PHASES):
        readers = setting.metadata.get("phases")
        if readers and phase not in readers:
            yield setting.name, phase


@pytest.mark.parametrize(("name", "phase"), pairs())
def test_a_setting_that_a_phase_does_not_read_is_refused(name: str, phase: str) -> None:
    argv = ["s", "--checkpoint", "a", "--out", "o"] if phase == "build" else ["--out", "o"]
    with pytest.raises(ConfigError, match=rf"'{name}' \({VALUES[name][0][0]}\)|engine-args requires"):
        configure(*argv, *VALUES[name][0], *ONLY[phase])


@pytest.mark.parametrize("name", [each.name for each in fields(RunConfig) if each.metadata.get("alone")])
def test_a_setting_of_one_phase_is_refused_for_a_whole_run(name: str) -> None:
    with pytest.raises(ConfigError, match=r"requires --(infer|score)-only"):
        configure("s", "--checkpoint", "a", "--out", "o", *VALUES[name][0])


@pytest.mark.parametrize("phase", PHASES)
def test_a_dry_run_of_one_phase_is_refused(phase: str, tmp_path: Path) -> None:
    out = tmp_path / "o"
    argv = ["run", "pocket-quick", "--out", str(out), *ONLY[phase], "--dry-run"]
    assert main([*argv, *(["--teacher", "pocket"] if phase == "build" else [])]) == 64
    assert not out.exists()
    with pytest.raises(ConfigError, match="is of a whole run"):
        estimate_run(RunConfig(out=out, phases=["infer"]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "'limit' = 0: must be at least 1"),
        ({"workers": 0}, "'workers' = 0: must be at least 1"),
        ({"phases": []}, "'phases' is empty"),
        ({"phases": ["infr"]}, "unknown phase 'infr'; did you mean 'infer'"),
        ({"protocols": ["generate"]}, "unknown protocol 'generate'; did you mean 'generation'"),
        ({"dtype": "float23"}, "'dtype' = 'float23'; did you mean 'float32'"),
        ({"checkpoints": "a"}, r"'checkpoints' = 'a': give a list, \['a'\]"),
        ({"suite": None}, "no suite given"),
        ({"strict": True, "skip_missing": True}, "--strict leaves nothing out, --skip-missing does"),
        ({"checkpoints": []}, "no checkpoints given: pass --checkpoint and/or --teacher"),
    ],
)
def test_invalid_settings_are_refused_in_python(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**{"suite": "quick", "checkpoints": ["a"], "out": "o"} | settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limt: 3", "unknown key 'limt'; did you mean 'limit'"),
        ("limit: three", "'limit' = 'three'"),
        ("skip_missing: perhaps", "'skip_missing' = 'perhaps'"),
        ("engine_args: [1]", r"'engine_args' = \[1\]"),
        ("protocols: [generation]", "requires --infer-only"),
        ("- quick", "not YAML|expected a mapping"),
    ],
)
def test_invalid_files_are_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"suite: quick\ncheckpoints: [a]\nout: o\n{text}\n")
    with pytest.raises(ConfigError, match=rf"run\.yaml: .*({message})"):
        read_run_config(path)


def test_a_run_folder_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run folder given: pass --out RUN"):
        configure("quick", "--checkpoint", "a")
    with pytest.raises(ConfigError, match=r"run\.yaml: 'out' is required"):
        read_run_config(writable(tmp_path / "run.yaml", {"suite": "quick", "checkpoints": ["a"]}))


def test_the_configuration_is_recorded_by_phase(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate(RunConfig(suite=suite, teacher="t", checkpoints=["a"], out=run, limit=2, phases=["build"]))
    evaluate_quietly(out=run, checkpoints=["a"], dtype="float32", phases=["infer"])
    recorded = json.loads((run / "environment.json").read_text())["config"]
    assert recorded["build"] == {
        "suite": str(suite),
        "checkpoints": ["a"],
        "teacher": "t",
        "limit": 2,
        "max_length": None,
        "skip_missing": False,
        "strict": False,
        "data": None,
        "trust_remote_code": False,
        "benchmarks": [],
        "workers": None,
    }
    assert recorded["infer"]["dtype"] == "float32"
    assert (recorded["infer"]["executor"], "score" in recorded) == ("local", False)


def test_another_suite_is_refused_in_every_phase(crew: Any, suite: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, phases=["build"])
    with pytest.raises(RunFolderError, match="holds a run of suite small, not quick"):
        evaluate_quietly(suite="quick", out=run, phases=["infer"])
    assert not crew.engines
    evaluate_quietly(suite=suite, out=run, phases=["infer"])
    assert len(crew.engines) == 1


def test_an_unknown_executor_is_refused_before_any_work(crew: Any, suite: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown executor 'lokal'; did you mean 'local'"):
        evaluate(RunConfig(suite=suite, checkpoints=["a"], out=tmp_path / "run", executor="lokal"))
    assert not (tmp_path / "run").exists()


def test_secrets_in_arguments_are_not_recorded() -> None:
    """`environment.json` travels in shards, and with a published run."""
    secret = "hf-0123"
    arguments = {
        "hf_token": secret,
        "api_key": secret,
        "nested": {"AWS_SECRET_ACCESS_KEY": secret, "headers": [{"Authorization": secret}]},
        "password": secret,
        "api_keys": [secret],
        "address": f"redis://user:{secret}@host:6379/0",
        "max_num_batched_tokens": 512,
        "tokenizer": "org/name",
        "stop_token_ids": [1],
        "use_auth_token": True,
    }
    config = RunConfig(
        suite="quick", checkpoints=["c"], out="o", engine_args=arguments, executor_args=arguments
    )
    recorded = config.record("infer")
    assert secret not in json.dumps(recorded)
    for given in (recorded["engine_args"], recorded["executor_args"]):
        kept = {name: given[name] for name in list(arguments)[-4:]}
        assert kept == {name: arguments[name] for name in kept}
        assert given["address"] == "redis://(not recorded)@host:6379/0"
        assert given["hf_token"] == given["nested"]["AWS_SECRET_ACCESS_KEY"] == "(not recorded)"
    assert config.engine_args == arguments

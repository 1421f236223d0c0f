"""A run on a server: the same scores as in process, and nothing lost when the server stops."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evalsuite.cli import main
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.foundation import ConfigError
from evalsuite.models.inference.endpoint.client import ServerError
from evalsuite.reports.records.sidecars import read_doctor
from evalsuite.reports.run import read_manifest
from tests.evaluation.runs import evaluate_quietly
from tests.models.inference.endpoint.server import serving
from tests.reports.score_edits import rows_by_cell


@pytest.fixture
def checkpoint(make_llama: Callable[[Path, int], Path], tmp_path: Path) -> Path:
    return make_llama(tmp_path / "tiny", 0)


def scores(run: Path) -> dict[tuple[str, str], dict[str, float]]:
    return {(name, row["doc_id"]): row["values"] for name, rows in rows_by_cell(run).items() for row in rows}


def test_a_run_on_a_server_resumes_and_scores_as_in_process(
    checkpoint: Path, suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalsuite.models.inference.endpoint.client._pause", lambda attempt: 0.0)
    own, run = tmp_path / "own", tmp_path / "served"
    evaluate_quietly(suite=suite, teacher=str(checkpoint), out=own, cache=False)
    with serving(checkpoint) as server:
        arguments = {"url": server.url, "retries": 1, "in_flight": 2}
        served = RunConfig(
            suite=suite,
            teacher=str(checkpoint),
            out=run,
            engine="endpoint",
            engine_args=arguments,
            cache=False,
            quiet=True,
        )
        total = 0
        for alive in (11, 17):
            first = len(server.bodies)
            server.fault = lambda number, body, end=first + alive: "500" if number > end else ""
            with pytest.raises(ServerError, match="Responses so far are kept"):
                evaluate(served)
            total += alive
        server.fault = lambda number, body: ""
        first = len(server.bodies)
        assert evaluate(served).missing == 0
        left = len(server.bodies) - first
        distinct = len({(tuple(body["prompt"]), body["max_tokens"]) for body in server.bodies})
        # Of two requests in flight at each break, up to three answered continuations are lost.
        assert left <= distinct - total + 2 * 2 * 3
    here, there = scores(run), scores(own)
    assert here.keys() == there.keys()
    for key, values in there.items():
        assert here[key] == pytest.approx(values, abs=1e-3), key
    (engine,) = read_manifest(run).engines.values()
    assert engine.versions["model"] == "tiny"


def test_bad_input_is_one_sentence(
    checkpoint: Path, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "run",
        str(suite),
        "--teacher",
        str(checkpoint),
        "--out",
        str(tmp_path / "o"),
        "--engine",
        "endpoint",
    ]
    assert main(argv) == 64
    assert "engine endpoint: give --engine-args url=http://HOST:PORT/v1" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
    assert main([*argv, "--engine-args", "url=http://127.0.0.1:9/v1", "retries=0"]) == 69
    assert "127.0.0.1:9/v1/models: no answer in 1 attempts" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="no effect on engine endpoint"):
        evaluate(
            RunConfig(
                suite=suite,
                teacher=str(checkpoint),
                out=tmp_path / "o",
                engine="endpoint",
                engine_args={"url": "http://127.0.0.1:9/v1"},
                device="cpu",
            )
        )


def test_the_doctor_compares_what_is_served_with_what_is_evaluated(
    checkpoint: Path, suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    evaluate_quietly(suite=suite, teacher=str(checkpoint), out=run, phases=("build",))
    with serving(checkpoint) as server:
        argv = ["doctor", str(checkpoint), "--out", str(run), "--documents", "4", "--engine", "endpoint"]
        argv += ["--engine-args", f"url={server.url}"]
        assert main(argv) == 0
        sound = capsys.readouterr().out
        (found,) = read_doctor([run])
        assert found.checks[-1].name == "served"
        assert (found.checks[-1].status, found.changed) == ("ok", 0)
        # A server that holds other weights is told by its responses.
        with torch.inference_mode():
            server.model.model.norm.weight.mul_(-1)
        server.rows.clear()
        assert main(argv) == 0
        other = capsys.readouterr().out
        (found,) = read_doctor([run])
        assert (found.checks[-1].status, found.changed) == ("failed", 1)
    for name in ("endpoint", "endpoint again", "endpoint alone"):
        difference, _, changed = table(sound)[name]
        assert (float(difference) < 1e-4, changed) == (True, "0/4")
        assert table(sound)[f"generation {name}"][-1] == "0/4"
        assert float(table(other)[name][0]) > 0.1
        assert table(other)[f"generation {name}"][-1] == "4/4"
    # Load changes nothing of either.
    for text in (sound, other):
        assert table(text)["generation endpoint under load"][-1] == "0/4"
    assert (
        "Verdict: no difference from the evaluated model beyond rounding; a server that flips 52.7 %" in sound
    )
    assert "Verdict: the served model does not respond as the evaluated one: flips in endpoint, " in other
    assert divergence(sound) < 1e-6 < 0.1 < divergence(other)


def divergence(text: str) -> float:
    """The mean of the KL row."""
    return float(re.search(r"KL, nats +≥ ([\d.e+-]+)", text)[1])


def table(text: str) -> dict[str, list[str]]:
    """Rows by name."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in text.splitlines())
    return {name: cells for name, *cells in rows if len(cells) == 3}

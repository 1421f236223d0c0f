"""A shard is validated whole before any of it is merged; a refused one leaves the run untouched."""

import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from evalsuite.cli import main
from evalsuite.evaluation.shards.export import export_shard
from evalsuite.evaluation.shards.merge import merge_shards
from evalsuite.foundation import DataError, read_jsonl
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.inference.response_cache import read_responses
from evalsuite.models.inference.settling import settle
from tests.evaluation.conftest import Crew
from tests.evaluation.runs import evaluate_quietly

SUITE = """\
name: small
title: Small
limit: 3
benchmarks: [pocket_facts]
"""


@pytest.fixture(scope="module")
def built(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run that has requests (`home`) and a sound, unpacked shard of it (`shard`)."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "small.yaml").write_text(SUITE)
    crew = Crew(tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        crew.install(patch)
        evaluate_quietly(suite=folder / "small.yaml", out=folder / "home", teacher="t", phases=("build",))
        shutil.copytree(folder / "home", folder / "host")
        evaluate_quietly(checkpoints=["t", "b"], out=folder / "host", phases=("infer",))
        export_shard(folder / "host", folder / "shard.tar.xz")
        with tarfile.open(folder / "shard.tar.xz") as archive:
            archive.extractall(folder / "shard", filter="data")
        yield folder


@pytest.fixture
def home(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "home", tmp_path / "home"))


@pytest.fixture
def shard(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "shard", tmp_path / "shard"))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def merge_command(built: Path, home: Path, *shards: Path) -> list[str]:
    options = ["--out", str(home), "--quiet", "--score-only", "--merge-shards", *map(str, shards)]
    return ["run", str(built / "small.yaml"), *options]


def response_log(shard: Path, verb: str = "score") -> Path:
    return sorted((shard / "responses").glob(f"*.{verb}.jsonl"))[-1]


def with_row(change: Callable[[dict[str, Any]], Any], verb: str = "score") -> Callable[[Path], None]:
    """Replace the last response of one response log."""

    def spoil(shard: Path) -> None:
        rows: list[Any] = list(read_jsonl(response_log(shard, verb)))
        rows[-1] = change(rows[-1])
        response_log(shard, verb).write_text("".join(json.dumps(row) + "\n" for row in rows))

    return spoil


def with_response(verb: str = "score", **fields: Any) -> Callable[[Path], None]:
    return with_row(lambda row: row | {"response": row["response"] | fields}, verb)


def with_json(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Replace the value of one JSON file."""

    def spoil(shard: Path) -> None:
        path = shard / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return spoil


def with_checkpoint(**fields: Any) -> Callable[[Path], None]:
    """Change the shard's last checkpoint, which the run does not know yet."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        *others, last = found["checkpoints"]
        return found | {"checkpoints": [*others, last | fields]}

    return with_json("run.json", change)


def with_engine(**fields: Any) -> Callable[[Path], None]:
    def change(facts: dict[str, Any]) -> dict[str, Any]:
        weights_id, engine = list(facts["engines"].items())[-1]
        return facts | {"engines": facts["engines"] | {weights_id: engine | fields}}

    return with_json("run.json", change)


def with_engines(engines: Any) -> Callable[[Path], None]:
    return with_json("run.json", lambda before: before | {"engines": engines})


def with_facts(**facts: Any) -> Callable[[Path], None]:
    return with_json("environment.json", lambda before: before | facts)


def with_diverged(**fields: Any) -> Callable[[Path], None]:
    note = {"label": "gla", "stage": "kd", "step": 12, "tokens": 53248, "reason": "the loss is nan"}
    return with_json("run.json", lambda found: found | {"diverged": [note | fields]})


def with_bytes(name: str, data: bytes) -> Callable[[Path], None]:
    def spoil(shard: Path) -> None:
        (shard / name).write_bytes(data)

    return spoil


def renamed_log(shard: Path) -> None:
    path = response_log(shard)
    path.rename(path.with_name(path.name.replace(".score.", ".scores.")))


def moved_log(shard: Path) -> None:
    path = response_log(shard)
    path.rename(path.with_name("0123.score.jsonl"))


def with_log(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(shard: Path) -> None:
        path = response_log(shard)
        path.write_bytes(change(path.read_bytes()))

    return spoil


def without_lines(count: int) -> Callable[[Path], None]:
    return with_log(lambda data: b"".join(data.splitlines(keepends=True)[:-count]))


def with_second(logprobs: list[float]) -> Callable[[Path], None]:
    """Append another response to the first request, to a shard that states nothing of its files."""

    def spoil(shard: Path) -> None:
        path = response_log(shard)
        row = next(iter(read_jsonl(path)))
        row["response"]["logprobs"] = logprobs
        path.write_text(path.read_text() + json.dumps(row) + "\n")
        (shard / "manifest.json").unlink()

    return spoil


def without_lists(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"response": {"logprobs": [], "greedy": [], "lengths": []}}


NAN = float("nan")
MALFORMED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    # name → change of a sound shard, file and field that the refusal names
    "too few log-probabilities": (with_response(logprobs=[-1.0]), "score.jsonl", "logprobs"),
    "no log-probabilities": (with_row(without_lists), "score.jsonl", "logprobs"),
    "a log-probability that is text": (with_response(logprobs=["x"]), "score.jsonl", "logprobs"),
    "a log-probability that is NaN": (with_response(logprobs=[NAN, -1, -1, -1]), "score.jsonl", "NaN"),
    "log-probabilities that are no list": (with_response(logprobs=-1.0), "score.jsonl", "logprobs"),
    "lengths of other continuations": (with_response(lengths=[9, 9, 9, 9]), "score.jsonl", "lengths"),
    "greedy that is no flag": (with_response(greedy=[2, 2, 2, 2]), "score.jsonl", "greedy"),
    "an unknown field of a response": (with_response(weight=2), "score.jsonl", "weight"),
    "an error that is a number": (with_response(error=3), "score.jsonl", "error"),
    "an error with numbers": (with_response(error="too long"), "score.jsonl", "error"),
    "a response that is a list": (with_row(lambda row: [row]), "score.jsonl", "line 3"),
    "a key of two": (with_row(lambda row: row | {"key": row["key"][:2]}), "score.jsonl", "key"),
    "a key of another request": (
        with_row(lambda row: row | {"key": ["0" * 16, "", 0]}),
        "score.jsonl",
        "key",
    ),
    "an unknown field of a row": (with_row(lambda row: row | {"note": 1}), "score.jsonl", "note"),
    "a text that is a list": (with_response("generate", text=["a"]), "generate.jsonl", "text"),
    "a negative token": (with_response("generate", tokens=[-1]), "generate.jsonl", "tokens"),
    "more tokens than requested": (
        with_response("generate", tokens=[1] * 100_000),
        "generate.jsonl",
        "tokens",
    ),
    "an unknown finish reason": (
        with_response("generate", finish_reason="tired"),
        "generate.jsonl",
        "finish_reason",
    ),
    "half a surrogate": (with_response("generate", text="\ud800"), "generate.jsonl", "text"),
    "a label that is a number": (with_checkpoint(label=7), "run.json", "label"),
    "a label that is null": (with_checkpoint(label=None), "run.json", "label"),
    "a label that is a list": (with_checkpoint(label=["b"]), "run.json", "label"),
    "an empty label": (with_checkpoint(label=""), "run.json", "label"),
    "a label of 300 characters": (with_checkpoint(label="b" * 300), "run.json", "label"),
    "a label that leaves its folder": (with_checkpoint(label="../../b"), "run.json", "label"),
    "an absolute label": (with_checkpoint(label="/etc/b"), "run.json", "label"),
    "a label with a control character": (with_checkpoint(label="b\x1b[2J"), "run.json", "label"),
    "an unknown field of a checkpoint": (with_checkpoint(rank=3), "run.json", "rank"),
    "another tokenizer": (with_checkpoint(tokenizer="f" * 16), "run.json", "tokenizer"),
    "checkpoints that are text": (
        with_json("run.json", lambda found: found | {"checkpoints": "b"}),
        "run.json",
        "list",
    ),
    "one checkpoint twice": (
        with_json("run.json", lambda found: found | {"checkpoints": [*found["checkpoints"]] * 2}),
        "run.json",
        "weights_id",
    ),
    "an environment that is a list": (with_json("environment.json", lambda _: []), "environment.json", ""),
    "engines that are a list": (with_engines([1]), "run.json", "engines"),
    "an engine that is text": (with_engines({"weights-b": "torch"}), "run.json", "weights-b"),
    "a fingerprint with a pattern": (with_engine(fingerprint="*"), "run.json", "fingerprint"),
    "a fingerprint with a path": (with_engine(fingerprint="../x"), "run.json", "fingerprint"),
    "a length that is text": (with_engine(max_length="long"), "run.json", "max_length"),
    "packages that are a list": (with_facts(packages=["torch"]), "environment.json", "packages"),
    "a time that is NaN": (with_facts(inference=[{"seconds": NAN}]), "environment.json", "NaN"),
    "a time that is text": (
        with_facts(inference=[{"label": "b", "responses": 1, "seconds": "x", "protocols": []}]),
        "environment.json",
        "seconds",
    ),
    "an environment that is binary": (with_bytes("environment.json", b"\x00\xff"), "environment.json", ""),
    "a deep environment": (with_bytes("environment.json", b"[" * 100_000), "environment.json", ""),
    "a registered label of another type": (with_checkpoint(label=3), "run.json", "label"),
    "registered parameters as text": (with_checkpoint(parameters="7B"), "run.json", "parameters"),
    "a registered lineage as text": (with_checkpoint(lineage="gpt"), "run.json", "lineage"),
    "a negative step of divergence": (with_diverged(step=-1), "run.json", "step"),
    "an unknown field of a divergence": (with_diverged(loss="nan"), "run.json", "loss"),
    "an unknown role": (with_checkpoint(role="x"), "run.json", "role"),
    "a log of an unknown verb": (renamed_log, "scores.jsonl", "score"),
    "a log of another engine": (moved_log, "0123.score.jsonl", "engine"),
    "a token of 10^30": (with_response("generate", tokens=[10**30]), "generate.jsonl", "tokens"),
    "a token beyond 31 bits": (with_response("generate", tokens=[2**31]), "generate.jsonl", "tokens"),
    "a log-probability of -1e308": (with_response(logprobs=[-1e308] * 4), "score.jsonl", "logprobs"),
    "a log cut in its last line": (with_log(lambda data: data[:-20]), "score.jsonl", "line 3"),
    "a log without its last line": (without_lines(1), "score.jsonl", "exported"),
    "a log without rows": (with_log(lambda data: b""), "score.jsonl", "empty"),
    "a log of zeros": (with_log(lambda data: bytes(len(data))), "score.jsonl", "line 1"),
    "a log of garbage": (with_log(lambda data: b"\xff\0" * 100), "score.jsonl", "line 1"),
    "a log with a line of garbage": (with_log(lambda data: data + b"\xff\n"), "score.jsonl", "line 4"),
    "a key given twice": (
        with_log(lambda data: data.replace(b'{"key"', b'{"key":[],"key"', 1)),
        "score.jsonl",
        "twice",
    ),
    "a missing log": (lambda shard: response_log(shard).unlink(), "score.jsonl", "missing"),
    "a manifest that is a list": (with_bytes("manifest.json", b"[]"), "manifest.json", "object"),
    "a manifest that is no JSON": (with_bytes("manifest.json", b"{"), "manifest.json", "JSON"),
    "a second response to a request": (with_second([-50.0] * 4), "score.jsonl", "differs"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_shard_is_refused_and_the_run_untouched(
    name: str, built: Path, home: Path, shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, file, field = MALFORMED[name]
    spoil(shard)
    before = contents(home)
    code = main(merge_command(built, home, shard))
    told = capsys.readouterr().err
    assert contents(home) == before
    assert "Traceback" not in told
    assert code >= 64
    assert file in told
    assert field in told


def test_the_sound_shard_of_these_tests_merges(home: Path, shard: Path) -> None:
    assert merge_shards(home, [shard]) == {"t": 6, "b": 6}
    assert merge_shards(home, [shard]) == {"t": 0, "b": 0}


def test_no_shard_is_merged_if_one_is_malformed(home: Path, built: Path, shard: Path) -> None:
    with_response(logprobs=[-1.0])(shard)
    before = contents(home)
    assert main(merge_command(built, home, built / "shard.tar.xz", shard)) >= 64
    assert contents(home) == before


def test_a_sound_response_replaces_a_refusal(home: Path, built: Path, shard: Path) -> None:
    """Of two equal keys the later sound response counts, wherever the refusal lies."""
    refusal = {"logprobs": [], "greedy": [], "lengths": [], "error": "out of memory"}
    with_row(lambda row: row | {"response": refusal})(shard)
    (shard / "manifest.json").unlink()
    sound = {str(row["key"]): row["response"] for row in read_jsonl(response_log(built / "shard"))}
    merge_shards(home, [shard])
    assert sum(merge_shards(home, [built / "shard"]).values()) == 1
    merged = home / "responses" / response_log(shard).name
    here = {str(row["key"]): row["response"] for row in read_jsonl(merged)}
    assert here == sound
    # A refusal never replaces a sound response.
    assert sum(merge_shards(home, [shard]).values()) == 0
    here = {str(row["key"]): row["response"] for row in read_jsonl(merged)}
    assert here == sound


@pytest.mark.parametrize("name", ["notes.txt", "responses/../run.json", "requests/index.json"])
def test_unknown_files_in_an_archive_are_refused(
    name: str, built: Path, home: Path, shard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "more.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for file in sorted(shard.rglob("*")):
            if file.is_file():
                archive.add(file, str(file.relative_to(shard)))
        archive.add(shard / "environment.json", name)
    before = contents(home)
    assert main(merge_command(built, home, path)) >= 64
    told = capsys.readouterr().err
    assert "more.tar.xz" in told
    assert "Traceback" not in told
    assert contents(home) == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("environment.json", b"{"),
        ("run.json", b"{"),
        ("run.json", b"\xff"),
    ],
)
def test_errors_in_an_archive_name_the_archive(
    name: str, change: bytes, home: Path, shard: Path, tmp_path: Path
) -> None:
    """Not the folder that it was unpacked into, which is gone when the message is read."""
    (shard / name).write_bytes(change)
    path = tmp_path / "cut.tar.xz"
    with tarfile.open(path, "w:xz") as archive:
        for file in sorted(shard.rglob("*")):
            if file.is_file():
                archive.add(file, str(file.relative_to(shard)))
    with pytest.raises(DataError, match=re.escape(f"{path}: {name}: not JSON")):
        merge_shards(home, [path])


def changed(shard: Path, target: Path, change: Callable[[dict[str, Any]], None], verb: str) -> Path:
    """Copy a shard with another response to its first request, as another host would have exported it."""
    shutil.copytree(shard, target)
    (target / "manifest.json").unlink()
    path = response_log(target, verb)
    rows = list(read_jsonl(path))
    change(rows[0]["response"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return target


def shifted(nats: float) -> Callable[[dict[str, Any]], None]:
    def change(response: dict[str, Any]) -> None:
        response["logprobs"] = [min(each + nats, 0.0) for each in response["logprobs"]]

    return change


@pytest.mark.parametrize(
    ("verb", "change"),
    [
        ("score", shifted(-2e-3)),
        ("score", shifted(-50.0)),
        ("score", lambda response: response.update(greedy=[not each for each in response["greedy"]])),
        ("generate", lambda response: response.update(text="another")),
        ("generate", lambda response: response.update(tokens=[5], finish_reason="eos")),
    ],
)
@pytest.mark.parametrize("where", ["two shards", "swapped", "the run, later", "the run, earlier"])
def test_responses_that_disagree_are_refused_in_any_order(
    verb: str, change: Callable[[dict[str, Any]], None], where: str, home: Path, shard: Path, tmp_path: Path
) -> None:
    other = changed(shard, tmp_path / "other", change, verb)
    if where.startswith("the run"):
        first, second = (shard, other) if where.endswith("later") else (other, shard)
        if first is other:
            (shard / "manifest.json").unlink()
        merge_shards(home, [first])
        shards = [second]
    else:
        shards = [shard, other] if where == "two shards" else [other, shard]
    before = contents(home)
    told = rf"{re.escape(str(shards[-1]))}: responses/.*{verb}\.jsonl: the response to request .* differs"
    with pytest.raises(DataError, match=told):
        merge_shards(home, shards)
    assert contents(home) == before


def test_rounding_of_log_probabilities_is_no_disagreement_and_order_changes_nothing(
    built: Path, shard: Path, tmp_path: Path
) -> None:
    other = changed(shard, tmp_path / "other", shifted(-5e-4), "score")
    third = changed(shard, tmp_path / "third", shifted(2e-4), "score")
    found = []
    for number, shards in enumerate(permutations([shard, other, third])):
        run = Path(shutil.copytree(built / "home", tmp_path / f"home{number}"))
        merge_shards(run, shards)
        path = run / "responses" / response_log(shard).name
        found.append(read_responses(path, "score", 1e-3))
    assert all(each == found[0] for each in found)


def test_a_run_with_two_responses_to_one_request_is_not_scored(
    home: Path, built: Path, shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As two processes on one machine could leave it; the last one counted."""
    merge_shards(home, [shard])
    log = response_log(home)
    row = next(iter(read_jsonl(log)))
    row["response"]["logprobs"] = [-50.0] * 4
    log.write_text(log.read_text() + json.dumps(row) + "\n")
    command = ["run", str(built / "small.yaml"), "--out", str(home), "--quiet", "--score-only"]
    assert main(command) == DataError.exit_code
    assert f"{log}, line 4: another response to the request" in capsys.readouterr().err


def test_the_incomplete_last_line_of_a_killed_run_is_no_damage(
    built: Path, home: Path, tmp_path: Path
) -> None:
    """Of a run folder that is merged as it is; in an export it is one."""
    killed = Path(shutil.copytree(built / "host", tmp_path / "killed"))
    log = response_log(killed)
    log.write_bytes(log.read_bytes()[:-20])
    assert sum(merge_shards(home, [killed]).values()) == 11
    with_log(lambda data: data[: data.rfind(b"\n") + 1] + b"\xff\0")(killed)
    with pytest.raises(DataError, match="ends within a line"):
        merge_shards(home, [killed])


def test_a_longer_generation_replaces_one_that_was_cut_short() -> None:
    """The same model reads further with another `max_length`, under the same fingerprint."""
    cut = GenerateResponse((1, 2), "a", "length")
    longer = GenerateResponse((1, 2, 3), "ab", "eos")
    assert settle(cut, longer, 0.0) == settle(longer, cut, 0.0) == longer
    assert settle(GenerateResponse((1, 2), "a", "eos"), longer, 0.0) is None

"""`evalsuite select`: the selection file, its page, and the messages."""

import json

import pytest

from evalsuite.cli.entry import main

BRIEF = ["stage.mixer.tokens=512", "stage.block.tokens=512", "stage.kd.tokens=512", "stage.seq_len=128"]


def select(*argv: str) -> int:
    return main(["select", "pocket", "--mixer", "gla", "--device", "cpu", "--quiet", *argv])


def test_a_share_of_the_layers_in_a_file_and_a_page(tmp_path, capsys):
    out = tmp_path / "layers.json"
    assert select("--selector", "uniform", "--ratio", "1:1", "--out", str(out)) == 0
    assert json.loads(out.read_text())["layers"] == [0, 2]
    assert "Selects 2 layers: 0, 2." in out.with_suffix(".html").read_text()
    assert capsys.readouterr().out.splitlines() == [
        "uniform selects 2 layers: 0, 2",
        str(out),
        str(out.with_suffix(".html")),
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--selector", "uniform", "--budget", "5"), "must be between 1 and 4"),
        (("--selector", "unifrom", "--budget", "1"), "did you mean 'uniform'?"),
        (("--selector", "fixed", "--budget", "1"), "--option set=NAME"),
        (("--selector", "kv", "--budget", "1", "--option", "snapshot_interval=0"), "snapshot_interval"),
    ],
)
def test_a_question_that_cannot_be_answered_is_a_usage_mistake(tmp_path, capsys, argv, message):
    assert select(*argv, "--out", str(tmp_path / "layers.json")) == 64
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.long
def test_early_stop_prints_its_savings(tmp_path, capsys):
    """A window of two nearly equal snapshots stops the training: the second of four."""
    settings = ["tokens=1024", "batch_size=2", "align_tokens=256", "snapshot_interval=1", "window=2"]
    settings += ["stop_on_last_slot_tie=true"]
    arguments = ["--selector", "ga_s2", "--budget", "3", "--out", str(tmp_path / "layers.json")]
    assert select(*arguments, "--set", *BRIEF, "stage.batch_size=2", "--option", *settings, "held_out=2") == 0
    # 3 of 4 layers differ in one at most: their union is never over K + 1.
    line = capsys.readouterr().out.splitlines()[1]
    assert line == (
        "stopped at step 2 of 4 because the selection was stable: 2,304 student tokens, "
        "2,048 saved by the early stop; a separate run per layer would take 5,120 (55% saved)"
    )


def test_a_recipe_says_how_its_layers_are_selected(tmp_path, capsys):
    planned = "selection={selector: act_mse, budget: 2, options: {held_out: 4, data: pocket}}"
    common = ("--set", *BRIEF, planned, "--out")
    assert select(*common, str(tmp_path / "planned.json")) == 0
    first = json.loads((tmp_path / "planned.json").read_text())
    assert (first["selector"], len(first["layers"])) == ("act_mse", 2)
    assert first["details"]["request"]["options"] == {"held_out": 4, "data": "pocket"}
    assert select("--selector", "uniform", "--budget", "1", *common, str(tmp_path / "own.json")) == 0
    own = json.loads((tmp_path / "own.json").read_text())
    assert (own["selector"], len(own["layers"])) == ("uniform", 1)
    assert own["details"]["request"]["recipe"] == first["details"]["request"]["recipe"]
    capsys.readouterr()
    for given, message in (
        (("--selector", "uniform"), "--budget or --ratio is required"),
        (("--budget", "1"), "--selector NAME is required"),
        (("--set", "selection={selector: uniform}"), "give either 'budget' or 'ratio'"),
        (("--option", "data=pockets", "--set", planned), "has no source 'pockets'; did you mean 'pocket'"),
    ):
        assert select(*given, "--out", str(tmp_path / "none.json")) == 64
        assert message in capsys.readouterr().err


def test_several_mixers_and_budgets_are_a_file_each_and_are_compared(tmp_path, capsys):
    out = str(tmp_path / "u.json")
    sizes = ("--selector", "uniform", "--budget", "1", "2")
    assert select(*sizes, "--mixer", "gla", "kda", "--out", out) == select(*sizes, "--out", out) == 0
    files = [str(tmp_path / f"u-{k}.json") for k in (1, 2)]
    by_mixer = [str(tmp_path / f"u-{mixer}-{k}.json") for mixer in ("gla", "kda") for k in (1, 2)]
    assert sorted(map(str, tmp_path.glob("*.json"))) == sorted(files + by_mixer)
    capsys.readouterr()
    assert main(["show", "selections", *files]) == 0
    shown = capsys.readouterr().out
    assert "uniform (2 layers)  0 2" in shown
    last = " ".join(shown.splitlines()[-1].split())
    assert last == "uniform (1 layer) uniform (2 layers) 1 of 1 0.50 – –"

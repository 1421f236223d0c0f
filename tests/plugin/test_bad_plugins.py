"""Plugins that cannot be used are named with the way out, and stop only the runs that use them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.api import CompareConfig, GateConfig, RunConfig, compare, evaluate, gate, load_run
from evalsuite.cli.entry import main
from evalsuite.distill.recipe import RECIPES, load_recipe
from evalsuite.foundation import ConfigError, DataError
from evalsuite.foundation.registry import Registry
from evalsuite.tasks.benchmark import FOLDER
from tests.plugin.conftest import REGISTRIES, Install

GROUPS = {registry.group: registry for registry in REGISTRIES}
SOUND = "EVALSUITE_API = 1\n"
SUBJECTS = {str(group): str(group).partition(".")[2] for group in GROUPS}

BAD: dict[str, tuple[str, str]] = {
    "import": ("import no_such_package\n", "cannot be imported from 'bad_plugin:item' (ModuleNotFoundError"),
    "error": ("1 / 0\n", "(ZeroDivisionError: division by zero); repair or uninstall bad-plugin 1.0"),
    "attribute": (SOUND, "cannot be imported from 'bad_plugin:item' (AttributeError"),
    "version": (
        "EVALSUITE_API = 99\nitem = len\n",
        "was written for interface 99, this evalsuite has interface",
    ),
    "unversioned": ("item = len\n", "states no EVALSUITE_API"),
    "kind": (SOUND + "item = 3\n", "of bad-plugin 1.0 is no "),
}
"""What is wrong → the plugin's module, and what the refusal says."""
CASES = [*(("kind", group) for group in GROUPS), *((what, "evalsuite.samplers") for what in BAD)]
"""All registries load plugins by the same code, but for what kind each demands."""


@pytest.mark.parametrize(("what", "group"), dict.fromkeys(CASES))
def test_a_bad_plugin_is_refused_by_name(
    install: Install, group: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, message = BAD[what]
    registry: Registry[Any] = GROUPS[group]
    known = [name for name in registry.names() if registry.origin(name) == "evalsuite"]
    install("bad-plugin", {group: {"bad": "bad_plugin:item"}}, {"bad_plugin": source})
    with pytest.raises(ConfigError) as caught:
        registry.get_or_raise("bad", "recipe.yaml: 'x'")
    assert message in str(caught.value)
    assert str(caught.value).startswith("recipe.yaml: 'x': ")
    assert [registry[name] for name in known]
    # A listing names it, and goes on.
    assert main(["show", SUBJECTS[group]]) == 0
    out = capsys.readouterr().out
    assert "bad: cannot be used: " in out
    assert message in out


@pytest.mark.parametrize("group", GROUPS)
def test_two_plugins_of_one_name_are_refused(install: Install, group: str) -> None:
    install("first", {group: {"bad": "first_plugin:item"}}, {"first_plugin": SOUND + "item = len\n"})
    install("second", {group: {"bad": "second_plugin:item"}}, {"second_plugin": SOUND + "item = len\n"})
    with pytest.raises(ConfigError, match=r"is defined by first 1\.0 and second 1\.0; uninstall all but one"):
        GROUPS[group].get_or_raise("bad")


@pytest.mark.parametrize("group", GROUPS)
def test_a_plugin_never_replaces_a_definition_of_evalsuite(install: Install, group: str) -> None:
    registry = GROUPS[group]
    name = registry.names()[0]
    before = registry[name]
    install("bad-plugin", {group: {name: "bad_plugin:item"}}, {"bad_plugin": "1 / 0\n"})
    assert registry[name] is before
    assert "of bad-plugin 1.0 is ignored: evalsuite has its own" in str(registry.problem(name))


def test_a_report_and_a_gate_name_a_measure_that_breaks(install: Install, tmp_path: Path) -> None:
    install("bad-plugin", {"evalsuite.measures": {"bad": "bad_plugin:item"}}, {"bad_plugin": "1 / 0\n"})
    run = Path(__file__).parents[1] / "reports" / "fixtures" / "passing"
    made = compare(CompareConfig(inputs=[run], out=tmp_path))
    (warning,) = (each for each in made.report.warnings if "bad-plugin" in each)
    assert warning.startswith("measure 'bad' of bad-plugin 1.0 cannot be imported from 'bad_plugin:item'")
    assert warning.replace("'", "&#39;") in made.page.read_text()
    assert gate(GateConfig(runs=[run], max_gap=50)).exit_code == 0
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{metric: bad, min: 1}]\n")
    with pytest.raises(ConfigError, match=r"unknown metric.*measure 'bad' of bad-plugin"):
        gate(GateConfig(runs=[run], policy=policy))


def write_recipe(path: Path, **stage: Any) -> Path:
    """Write the pocket recipe with a changed last stage."""
    pocket = yaml.safe_load((RECIPES / "pocket.yaml").read_text())
    pocket["stages"][-1] |= stage
    path.write_text(yaml.safe_dump(pocket))
    return path


def test_an_unknown_setting_of_a_plugin_is_named(example: Path, tmp_path: Path) -> None:
    stage = {"objective": "example_distillation", "ce_shar": 0.5}
    with pytest.raises(ConfigError, match=r"unknown key 'stages\.2\.ce_shar'.*did you mean 'ce_share'"):
        load_recipe(write_recipe(tmp_path / "recipe.yaml", **stage))
    with pytest.raises(ConfigError, match=r"'stages\.2\.ce_share' = 2"):
        load_recipe(write_recipe(tmp_path / "recipe.yaml", objective="example_distillation", ce_share=2))


def test_a_run_that_uses_no_bad_plugin_succeeds(install: Install, tmp_path: Path) -> None:
    points = {str(group): {"bad": "bad_plugin:item"} for group in GROUPS}
    install("bad-plugin", points, {"bad_plugin": "1 / 0\n"})
    (tmp_path / "s.yaml").write_text("name: s\ntitle: S\nlimit: 2\nbenchmarks: [pocket_facts]\n")
    load_recipe("pocket")
    config = RunConfig(
        suite=tmp_path / "s.yaml", teacher="pocket", out=tmp_path / "run", device="cpu", quiet=True
    )
    assert evaluate(config).missing == 0


def test_a_run_that_uses_a_bad_plugin_is_refused_before_it_starts(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("bad-plugin", {"evalsuite.scorers": {"bad": "bad_plugin:item"}}, {"bad_plugin": "1 / 0\n"})
    (tmp_path / "facts.yaml").write_text(
        "name: facts\ntitle: F\ncategory: recall\nlicense: none\ncitation: none\n"
        "generated: {generator: pocket, task: facts, count: 4}\n"
        "generation: {dataset: evalsuite, scorer: bad, metric: accuracy, sampling: {max_new_tokens: 4}}\n"
    )
    (tmp_path / "s.yaml").write_text("name: s\ntitle: S\nbenchmarks: [facts.yaml]\n")
    run = tmp_path / "run"
    argv = ["run", str(tmp_path / "s.yaml"), "--teacher", "pocket", "--out", str(run), "--device", "cpu"]
    assert main([*argv, "--quiet"]) == 64
    error = capsys.readouterr().err
    assert "facts: scorer 'bad' of bad-plugin 1.0 cannot be imported" in error
    assert not (run / "responses").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('x')", "facts: generator bad failed (KeyError: 'x')"),
        ("return 3", "facts: generator bad must return a list of rows, each a dict"),
    ],
)
def test_a_generator_that_fails_costs_its_own_benchmark_only(
    install: Install, body: str, message: str, tmp_path: Path
) -> None:
    source = f"{SOUND}def item(request):\n    {body}\n"
    install("bad-plugin", {"evalsuite.generators": {"bad": "bad_plugin:item"}}, {"bad_plugin": source})
    facts = yaml.safe_load((FOLDER / "pocket_facts.yaml").read_text())
    facts |= {"name": "facts", "generated": {"generator": "bad", "task": "facts", "count": 2}}
    (tmp_path / "facts.yaml").write_text(yaml.safe_dump(facts))
    suite = tmp_path / "s.yaml"
    suite.write_text("name: s\ntitle: S\nlimit: 2\nbenchmarks: [facts.yaml, pocket_cloze]\n")
    config = RunConfig(suite=suite, teacher="pocket", out=tmp_path / "run", device="cpu", quiet=True)
    with pytest.raises(DataError, match=re.escape(message)):
        evaluate(config)
    done = evaluate(replace(config, out=tmp_path / "rest", skip_missing=True))
    assert (done.missing, list(load_run(tmp_path / "rest").samples["benchmark"].unique())) == (
        0,
        ["pocket_cloze"],
    )

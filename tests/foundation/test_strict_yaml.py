"""What YAML and JSON files state twice is refused wherever a file is read; a plain parser keeps the last."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.cli.options import named_values
from evalsuite.distill import load_recipe
from evalsuite.distill.selection import load_selector
from evalsuite.foundation import (
    CheckpointError,
    ConfigError,
    DataError,
    EvalsuiteError,
    read_json,
    read_jsonl,
)
from evalsuite.foundation.model_card import read_card
from evalsuite.foundation.strict_yaml import parse_yaml, read_yaml
from evalsuite.models.checkpoints.config import read_object
from evalsuite.models.checkpoints.safetensors_index import read_header
from evalsuite.reports.admission import load_rule
from evalsuite.reports.gate.policy import load_policy
from evalsuite.reports.imports.fields import read_object as read_log
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.suite import load_suite

TWICE = "a: {b: 1, c: 2}\nd:\n  - {e: 1, 'e': 2}\n"
SHARED = "x: &x {a: 1, b: {c: 1}}\ny: &y {b: {c: 2}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "F, line 3: key 'a' occurs twice (first in line 1); keep one"),
        (TWICE, "F, line 3: key 'e' occurs twice (first in line 3)"),
        ("1: a\n0x1: b", "F, line 2: key '0x1' occurs twice (first in line 1)"),
        ("x: &x {a: 1}\nz: {<<: *x, <<: *x}", "F, line 2: key '<<' occurs twice"),
        (SHARED + "z: {<<: [*x, *y]}", "F, line 3: key 'b' is merged (<<) with two values, of lines 1 and 2"),
        (SHARED + "z: &z {<<: *x, q: 1}\nw: {<<: [*z, *y]}", "F, line 4: key 'b' is merged (<<)"),
        ("a: [\n", "F: not YAML"),
        ("x: &x {<<: *x}", "F: not YAML"),
        ("? [a]\n: 1", "unhashable"),
        ("a: 100000000000000000000", "the number 100000000000000000000 has more than 64 bits"),
    ],
)
def test_a_key_with_two_values_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "F")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (SHARED + "z: {<<: [*x, *y], b: 3}", {"a": 1, "b": 3}),  # the mapping's own value decides
        ("x: &x {a: [1]}\ny: &y {a: [1], b: 2}\nz: {<<: [*x, *y]}", {"a": [1], "b": 2}),
        ("x: &x {a: 1}\ny: &y {<<: *x, a: 2}\nw: *y\nz: {<<: *y}", {"a": 2}),
        ("z: {1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_what_agrees_is_read_as_yaml_means_it(text: str, value: object) -> None:
    assert parse_yaml(text, "F")["z"] == value


POLICY = "rules:\n  - {metric: recovery, min: 0.95}\nrules:\n  - {metric: recovery, min: 0.1}\n"
OBJECT = '{"layers": [0], "layers": [1], "model_type": "llama", "model_type": "gpt2"}'


def header(path: Path) -> Any:
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    text = json.dumps({"w": tensor})
    data = f"{text[:-1]}, {text[1:]}".encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + bytes(4))
    return read_header(path)


def written(read: Callable[[Path], Any], text: str) -> Callable[[Path], Any]:
    def call(path: Path) -> Any:
        path.write_text(text)
        return read(path)

    return call


def plan(path: Path) -> Any:
    (path.parent / "run.json").write_text('{"schema": 3, "schema": 4}')
    return read_manifest(path.parent)


def recipe_with_layers(path: Path) -> Any:
    from evalsuite.distill.training.builders import resolve_layer_selection

    path.write_text(OBJECT)
    return resolve_layer_selection(load_recipe("default", [f"student.softmax_layers={path}"]))


READERS: dict[str, tuple[Callable[[Path], Any], type[EvalsuiteError]]] = {
    "policy.yaml": (written(load_policy, POLICY), ConfigError),
    "admission.yaml": (written(load_rule, "a: 1\na: 2\n"), ConfigError),
    "suite.yaml": (written(load_suite, "name: x\nbenchmarks: [a]\nbenchmarks: [b]\n"), ConfigError),
    "benchmark.yaml": (written(load_benchmark, "name: x\nname: y\n"), ConfigError),
    "recipe.yaml": (written(load_recipe, "name: x\nseed: 1\nseed: 2\n"), ConfigError),
    "run.json": (plan, DataError),
    "card.md": (lambda path: read_card("---\na: 1\na: 2\n---\n", str(path)), DataError),
    "object.json": (written(read_json, OBJECT), DataError),
    "rows.jsonl": (written(lambda path: list(read_jsonl(path)), OBJECT + "\n"), DataError),
    "results.json": (written(read_log, OBJECT), DataError),
    "config.json": (written(read_object, OBJECT), CheckpointError),
    "layers.json": (recipe_with_layers, ConfigError),
    "model.safetensors": (header, CheckpointError),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_a_key_given_twice(name: str, tmp_path: Path) -> None:
    read, error = READERS[name]
    with pytest.raises(error) as caught:
        read(tmp_path / name)
    assert "occurs twice" in str(caught.value)
    assert name in str(caught.value)


def test_options_refuse_a_key_given_twice() -> None:
    with pytest.raises(ConfigError, match=r"--engine-args .*key 'b' occurs twice"):
        named_values(['a={"b": 1, "b": 2}'], "--engine-args", "x=1")
    assert named_values(["a=[1", "b=1"], "--engine-args", "x=1") == {"a": "[1", "b": 1}
    with pytest.raises(ConfigError, match=r"--set seed=.*key 'b' occurs twice"):
        load_recipe("default", ["seed={b: 1, b: 2}"])
    with pytest.raises(ConfigError, match="'held_out' is given twice"):
        load_selector("uniform", ["held_out=1", "held_out=2"])


def shuffled(value: Any, order: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(each, order) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(3))
def test_sorting_comments_and_names_of_files_change_no_recipe(seed: int, tmp_path: Path) -> None:
    from evalsuite.distill.recipe import RECIPES

    for name, variant in (("kd-nine-2025", "qkv-mm-h2h"), ("kl-guided-2026", None)):
        value = shuffled(read_yaml(RECIPES / f"{name}.yaml"), random.Random(seed))
        path = tmp_path / "renamed.yml"
        path.write_text("# comment\n" + yaml.safe_dump(value, sort_keys=False, default_flow_style=bool(seed)))
        suffix = f":{variant}" if variant else ""
        assert load_recipe(f"{path}{suffix}").hash == load_recipe(f"{name}{suffix}").hash


def test_sorting_comments_and_names_of_files_change_no_suite(tmp_path: Path) -> None:
    from evalsuite.tasks.suite import FOLDER

    path = tmp_path / "renamed.yml"
    for name in ("pocket", "gendistill-2026"):
        value = shuffled(read_yaml(FOLDER / f"{name}.yaml"), random.Random(1))
        path.write_text(yaml.safe_dump(value, sort_keys=False) + "# comment\n")
        assert load_suite(path).model_dump() == load_suite(name).model_dump()

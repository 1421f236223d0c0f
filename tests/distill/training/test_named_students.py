"""Students of one run that differ in their layers."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from evalsuite.distill import Recipe, distill
from evalsuite.distill.recipe.recipe import write_recipe
from evalsuite.distill.training.builders import check_recipe, resolve_layer_selection
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.models import load_checkpoint

NAMED = {
    "hybrid": {"mixer": "gated_deltanet", "softmax_layers": [1]},
    "window": {
        "mixer": "gated_deltanet",
        "layers": {"sliding_window": [0]},
        "options": {"sliding_window": {"window": 8}, "gated_deltanet": {"short_conv": 0}},
    },
    "heads": {
        "mixer": "gated_deltanet",
        "softmax_layers": [1],
        "softmax_heads": {0: [1], 2: [0]},
        "options": {"softmax": {"init": "qkv"}},
    },
}
WIDE = {"gated_deltanet": {"expand_k": 2.0}}


def test_named_students_of_one_run_equal_those_of_recipes_of_their_own(
    teacher_folder, tmp_path, small_recipe, stage
):
    labels = ["gated_deltanet", *NAMED]
    stages = [stage(kind, kind, tokens=256) for kind in ("attention_output", "hidden_state", "kd")]
    student = {"mixers": labels, "named": NAMED, "options": WIDE}
    together = small_recipe(teacher_folder, student=student, stages=stages)
    folders = distill(together, tmp_path / "together", quiet=True, device="cpu")
    assert [folder.name for folder in folders] == labels
    own = {name: {**NAMED[name]} for name in NAMED}
    for name, given in own.items():
        settings = {"mixers": [given.pop("mixer")], **given}
        settings["options"] = {**WIDE, **settings.get("options", {})}
        recipe = small_recipe(teacher_folder, student=settings, stages=stages)
        (alone,) = distill(recipe, tmp_path / name, quiet=True, device="cpu")
        found = tmp_path / "together" / name
        config, expected = (load_checkpoint(folder).model.config for folder in (found, alone))
        assert (config.mixers, config.mixer_options) == (expected.mixers, expected.mixer_options)
        assert config.softmax_heads == NAMED[name].get("softmax_heads", {})
        weights, others = (load_file(folder / "model.safetensors") for folder in (found, alone))
        assert weights.keys() == others.keys()
        assert all(torch.equal(weights[key], others[key]) for key in weights)
    lineage = json.loads((tmp_path / "together" / "hybrid" / "lineage.json").read_text())
    assert (lineage["label"], lineage["mixers"]) == (
        "hybrid",
        ["gated_deltanet", "softmax", "gated_deltanet"],
    )
    assert "softmax_heads" not in lineage
    lineage = json.loads((tmp_path / "together" / "heads" / "lineage.json").read_text())
    assert lineage["softmax_heads"] == {"0": [1], "2": [0]}
    card = (tmp_path / "together" / "heads" / "README.md").read_text()
    assert "Softmax heads by layer, next to its recurrence: 0: 1; 2: 0." in card


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"softmax_heads": {0: [1, 1]}}, r"softmax_heads.0\s.*1 is given twice"),
        ({"softmax_heads": {0: []}}, r"softmax_heads.0\s.*at least 1 item"),
        ({"softmax_heads": {-1: [0]}}, r"softmax_heads.-1.\[key\]"),
        ({"softmax_heads": {0: [9]}}, r"layer 0, gla: softmax_heads = \[9\]: must be some of heads"),
        (
            {"softmax_heads": {0: [1]}, "softmax_layers": [0]},
            r"layer 0, softmax: softmax_heads = \[1\]: only",
        ),
        (
            {"softmax_layers": "FILE", "softmax_heads": {1: [0]}},
            "has heads, and so has student.softmax_heads",
        ),
    ],
)
def test_heads_that_cannot_be_are_refused(teacher_folder, tmp_path, small_recipe, student, message):
    (tmp_path / "FILE").write_text('{"heads": {"1": [0]}}')
    if "FILE" in student.values():
        student = {**student, "softmax_layers": str(tmp_path / "FILE")}
    with pytest.raises((ConfigError, ValueError), match=message):
        check_recipe(small_recipe(teacher_folder, student={"mixers": ["gla"], **student}))


def test_a_file_of_heads_is_hashed_by_them(teacher_folder, tmp_path, small_recipe):
    path = tmp_path / "heads.json"
    path.write_text('{"selector": "mine", "layers": [1], "heads": {"0": [1]}, "teacher": null}')
    requested = small_recipe(teacher_folder, student={"mixers": ["gla"], "softmax_layers": str(path)})
    found = resolve_layer_selection(requested)
    assert (found.student.softmax_layers, found.student.softmax_heads) == ([1], {0: [1]})
    assert found.student.selection is not None
    assert parse(yaml.safe_load(write_recipe(found)), Recipe, "recipe").hash == found.hash
    path.write_text('{"selector": "mine", "layers": [1], "teacher": null}')
    assert resolve_layer_selection(requested).hash != found.hash


def test_labels_that_name_no_student_or_two_are_refused(teacher_folder, tmp_path, small_recipe):
    recipe = small_recipe(teacher_folder, student={"mixers": ["hybird"], "named": NAMED})
    with pytest.raises(ConfigError, match=r"unknown mixer or named student 'hybird'.*hybrid"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    both = {"gla": {"mixer": "kda"}}
    recipe = small_recipe(teacher_folder, student={"mixers": ["gla"], "named": both})
    with pytest.raises(ConfigError, match=r"student.named.gla: is the name of a mixer"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    with pytest.raises(ValueError, match=r"'\.\./gla' names a folder"):
        small_recipe(teacher_folder, student={"mixers": ["gla"], "named": {"../gla": {"mixer": "kda"}}})
    with pytest.raises(ValueError, match="'state' is another folder of every run"):
        small_recipe(teacher_folder, student={"mixers": ["gla"], "named": {"state": {"mixer": "kda"}}})

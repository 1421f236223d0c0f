"""Students of one run that differ in their layers."""

import json

import pytest
import torch
from safetensors.torch import load_file

from evalsuite.distill import distill
from evalsuite.foundation import ConfigError
from evalsuite.models import load_checkpoint

NAMED = {
    "hybrid": {"mixer": "gated_deltanet", "softmax_layers": [1]},
    "window": {
        "mixer": "gated_deltanet",
        "layers": {"sliding_window": [0]},
        "options": {"sliding_window": {"window": 8}, "gated_deltanet": {"short_conv": 0}},
    },
}
WIDE = {"gated_deltanet": {"expand_k": 2.0}}


def test_named_students_of_one_run_equal_those_of_recipes_of_their_own(
    teacher_folder, tmp_path, small_recipe
):
    labels = ["gated_deltanet", *NAMED]
    together = small_recipe(teacher_folder, student={"mixers": labels, "named": NAMED, "options": WIDE})
    folders = distill(together, tmp_path / "together", quiet=True, device="cpu")
    assert [folder.name for folder in folders] == labels
    own = {name: {**NAMED[name]} for name in NAMED}
    for name, given in own.items():
        settings = {"mixers": [given.pop("mixer")], **given}
        settings["options"] = {**WIDE, **settings.get("options", {})}
        recipe = small_recipe(teacher_folder, student=settings)
        (alone,) = distill(recipe, tmp_path / name, quiet=True, device="cpu")
        found = tmp_path / "together" / name
        config, expected = (load_checkpoint(folder).model.config for folder in (found, alone))
        assert (config.mixers, config.mixer_options) == (expected.mixers, expected.mixer_options)
        weights, others = (load_file(folder / "model.safetensors") for folder in (found, alone))
        assert weights.keys() == others.keys()
        assert all(torch.equal(weights[key], others[key]) for key in weights)
    lineage = json.loads((tmp_path / "together" / "hybrid" / "lineage.json").read_text())
    assert (lineage["label"], lineage["mixers"]) == (
        "hybrid",
        ["gated_deltanet", "softmax", "gated_deltanet"],
    )


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

"""The study of defects: every arm switches on one defect and changes nothing else."""

import math
from typing import Any

import pytest

from evalsuite.distill import load_recipe
from evalsuite.foundation import ConfigError
from evalsuite.reports.studies.training_choices.design import DESIGNS, load_study, study_runs

NAME = "defects-pocket-10m"
HALVING = {"min_decay": 0.5, "max_decay": 0.5, "input_gate_bias": -math.log(2)}
ARMS: dict[str, dict[str, Any]] = {
    "kl-times-length": {f"stages.{stage}.objective": "kd_batchmean" for stage in (2, 3)},
    "wrong-heads": {"student.init": "qkvo_heads_of_32"},
    "repeated-rows": {"student.init": "qkvo_repeated_rows"},
    "leaking-state": {f"stages.{stage}.objective": "kd_leaking_state" for stage in (2, 3)},
    "bf16-weights": {f"stages.{stage}.optimizer.kind": "adamw_bf16" for stage in range(4)},
    "no-decay": {f"stages.{stage}.schedule.kind": "wsd_without_decay" for stage in (1, 2, 3)},
    "overwritten-bias": {"student.options": {"mlstm": HALVING}},
}


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key → value of everything in a recipe, with mixer options as one value."""
    if prefix != "student.options." and isinstance(value, (dict, list)) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, inner in pairs for key, leaf in leaves(inner, f"{prefix}{name}.").items()}
    return {prefix[:-1]: value}


def settings(*variants: str) -> dict[str, Any]:
    recipe = load_recipe(f"{NAME}:{','.join(variants)}")
    return leaves(recipe.model_dump(mode="json", exclude={"variants", "variant"}))


def test_three_seeds_of_seven_defects_in_three_mixers():
    study = load_study(NAME)
    assert {arm for axis in study.axes.values() for arm in axis.arms} == set(ARMS)
    runs = study_runs(study)
    assert len(runs) == 3 * (3 + 6 * 3 + 1)
    assert [run.seed for run in runs[9:]] == [0] * 19 + [1] * 19 + [2] * 19


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_switches_on_its_defect_alone(arm):
    base, changed = settings("mlstm"), settings("mlstm", arm)
    assert {key: value for key, value in changed.items() if base.get(key) != value} == ARMS[arm]


def test_the_published_code_has_a_defect_in_students_of_the_study(tmp_path):
    text = (DESIGNS / f"{NAME}.yaml").read_text()
    (tmp_path / "design.yaml").write_text(
        text.replace("published_for: [gated_deltanet, kda]", "published_for: [kad]")
    )
    with pytest.raises(ConfigError, match=r"published_for: unknown student 'kad'; did you mean 'kda'"):
        load_study(str(tmp_path / "design.yaml"))

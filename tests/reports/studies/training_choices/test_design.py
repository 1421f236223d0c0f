"""Studies: which runs they have, in which order, and what they refuse."""

from pathlib import Path

import pytest

from evalsuite.distill import load_recipe
from evalsuite.foundation import ConfigError
from evalsuite.foundation.strict import parse
from evalsuite.reports.studies.training_choices.design import (
    BASE,
    DESIGNS,
    Study,
    StudyRun,
    load_study,
    study_runs,
)
from evalsuite.reports.studies.training_choices.jobs import (
    SELECTION,
    TEACHER,
    Setting,
    run_overrides,
    study_design,
    study_jobs,
)

DESIGN = {
    "recipe": "gap-study-pocket-10m",
    "suite": "pocket-10m",
    "seeds": [3, 5],
    "students": ["hybrid", "kda"],
    "base_only": [],
    "axes": {
        "objective": {"base": "KL", "arms": ["ce"]},
        "layers": {"base": "selected", "arms": ["uniform"], "students": ["hybrid"]},
    },
}


def study(**changes: object) -> Study:
    return parse({**DESIGN, **changes}, Study, "study")


def test_base_of_all_seeds_comes_first_and_arms_follow_seed_by_seed() -> None:
    assert [run.name for run in study_runs(study())] == [
        "hybrid-base-seed3",
        "kda-base-seed3",
        "hybrid-base-seed5",
        "kda-base-seed5",
        "hybrid-ce-seed3",
        "kda-ce-seed3",
        "hybrid-uniform-seed3",
        "hybrid-ce-seed5",
        "kda-ce-seed5",
        "hybrid-uniform-seed5",
    ]


def test_students_of_the_base_alone_have_no_arms() -> None:
    found = study_runs(study(base_only=["kda"]))
    assert {run.arm for run in found if run.student == "kda"} == {BASE}
    assert {run.arm for run in found if run.student == "hybrid"} == {BASE, "ce", "uniform"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_only": ["kba"]}, "unknown student 'kba'; did you mean 'kda'"),
        ({"seeds": [1, 1]}, "1 is given twice"),
        ({"students": ["kda", "kda"]}, "'kda' is named twice"),
        ({"axes": {"o": {"base": "KL", "arms": ["base"]}}}, "'base' is named twice, or is 'base'"),
        ({"axes": {"o": {"base": "KL", "arms": ["ce"], "compared_with": "c"}}}, "'c' is none of its arms"),
        ({"axes": {"o": {"base": "KL", "arms": ["ce"], "students": ["kdb"]}}}, "unknown student 'kdb'"),
    ],
)
def test_inconsistent_studies_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study(**changes)


def test_a_study_of_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    design = (DESIGNS / "gap-study-pocket-10m.yaml").read_text()
    (tmp_path / "d.yaml").write_text(design.replace("arms: [full-mask]", "arms: [ful-mask]"))
    with pytest.raises(ConfigError, match="has no variant 'ful-mask'; did you mean 'full-mask'"):
        load_study(str(tmp_path / "d.yaml"))


def test_every_arm_of_the_pocket_study_differs_from_its_base_in_one_field() -> None:
    """Two fields change where a mask belongs to the data, and where an arm brings its own source."""
    recipe = load_recipe("gap-study-pocket-10m")
    found = load_study("gap-study-pocket-10m")
    runs = study_runs(found)
    assert len(runs) == 87
    of_one = [run for run in runs if run.seed == 0 and run.student == "hybrid"]
    hashes = {load_recipe(f"gap-study-pocket-10m:{','.join(run.variants)}").hash for run in of_one}
    assert len(hashes) == len(of_one) == 11
    changed = {arm: len(recipe.overrides(arm)) for axis in found.axes.values() for arm in axis.arms}
    assert {arm for arm, fields in changed.items() if fields > 1} == {"instruct-only", "teacher-single"}


def test_hybrids_wait_for_the_selection_and_all_runs_for_the_teacher(tmp_path: Path) -> None:
    setting = Setting(study="gap-study-pocket-10m", teacher="t", requests=tmp_path, out=tmp_path)
    jobs = {job.name: job for job in study_jobs(load_study(setting.study), setting)}
    assert [name for name, job in jobs.items() if job.is_ready()] == [TEACHER]
    setting.shard(TEACHER).parent.mkdir()
    setting.shard(TEACHER).touch()
    ready = {name for name, job in jobs.items() if job.is_ready()}
    assert "kda-base-seed0" in ready
    assert not {name for name in ready if name.startswith("hybrid")}
    assert SELECTION not in ready
    setting.student("kda-base-seed0").mkdir(parents=True)
    assert jobs[SELECTION].is_ready()
    setting.layers.touch()
    assert all(job.is_ready() for job in jobs.values())


def test_selected_layers_reach_hybrids_alone_except_where_an_arm_sets_its_own(tmp_path: Path) -> None:
    setting = Setting(study="gap-study-pocket-10m", teacher="t", requests=tmp_path, out=tmp_path)
    found = load_study(setting.study)
    layers = f'student.softmax_layers="{setting.layers}"'
    for run, expected in (
        (StudyRun("hybrid", BASE, 0), True),
        (StudyRun("hybrid", "full-mask", 0), True),
        (StudyRun("hybrid", "uniform", 0), False),
        (StudyRun("kda", BASE, 0), False),
    ):
        assert (layers in run_overrides(run, found, setting)) == expected, run


def test_the_design_names_the_run_behind_every_label() -> None:
    design = study_design("gap-study-smollm2", load_study("gap-study-smollm2"))
    assert len(design["runs"]) == 24
    assert {"name": "hybrid-uniform-seed1", "student": "hybrid", "arm": "uniform", "seed": 1} in design[
        "runs"
    ]
    assert design["hybrids"] == ["hybrid"]
    assert study_design("on-policy-smollm2", load_study("on-policy-smollm2"))["hybrids"] == ["uniform"]
    assert design["axes"]["layers"]["arms"] == ["uniform"]

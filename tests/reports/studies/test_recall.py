"""Measuring recall on held-out text: classes, tables, the rule of choice and the command."""

import json

import numpy as np
import pytest

from evalsuite.distill import distill
from evalsuite.distill.recipe import write_recipe
from evalsuite.foundation import ConfigError
from evalsuite.reports.studies.recall import CLASSES, choose, classes_of, main, summary


def test_classes_of_tokens_by_distance():
    gram, rest = [1, 2, 3, 4], list(range(10, 2000))
    text = [*gram, *rest[:10], *gram, *rest[100:700], *gram, 2]
    found = [CLASSES[place] for place in classes_of(np.array(text))]
    assert found[:14] == ["new"] * 14
    assert found[14:18] == ["repeated"] * 3 + ["copied-64"]
    assert found[-5:] == ["repeated"] * 3 + ["copied-1024", "repeated"]
    edge = [*gram, *rest[:60], *gram, *rest[100:152], *gram]
    found = [CLASSES[place] for place in classes_of(np.array(edge))]
    assert (found[67], found[-1]) == ("copied-64", "copied-64")
    assert CLASSES[classes_of(np.array([*gram, *rest[:61], *gram]))[-1]] == "copied-256"


def row(name: str, kl: float, recall: float | None) -> dict:
    return {"student": name, "kl_512": kl, "recall": recall}


def test_the_best_recall_within_the_bound_of_kl_is_chosen():
    rows = [row("base", 0.20, 0.1), row("a", 0.206, 0.3), row("b", 0.2061, 0.9), row("c", 0.1, 0.2)]
    assert choose(rows, "base") == "a"
    assert choose(rows, "base", ["c"]) == "c"
    assert choose([row("base", 0.2, 0.3), row("a", 0.19, 0.3)], "base") == "a"
    assert choose([row("base", 0.2, None), row("a", 0.3, 0.3)], "base") == "base"
    assert choose(rows, "base", tolerance=1.1) == "b"
    retained = [
        {**found, "retained_512": value} for found, value in zip(rows, (0.7, 0.8, 0.9, 0.6), strict=True)
    ]
    assert choose(retained, "base", by="retained_512") == "a"
    assert choose(retained, "base", by="retained_512", tolerance=1.0) == "base"
    retained[3]["retained_512"] = None
    with pytest.raises(ConfigError, match="not in the files of c; measure these again"):
        choose(retained, "base", by="retained_512")
    assert choose(retained, "base", ["a", "b"], by="retained_512") == "a"
    with pytest.raises(ConfigError, match="base: was not measured"):
        choose([row("a", 1.0, 1.0)], "base")


def recipe_of(tmp_path, small_recipe, stage, teacher, **source):
    recipe = small_recipe(
        teacher,
        data={"pocket": {"kind": "pocket", "max_haystack_tokens": 128, **source}},
        stages=[stage("kd", "kd")],
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(write_recipe(recipe))
    return recipe, path


def test_the_command_measures_and_chooses(tmp_path, small_recipe, stage, teacher_folder, capsys):
    recipe, path = recipe_of(tmp_path, small_recipe, stage, teacher_folder)
    distill(recipe, tmp_path / "students", device="cpu", quiet=True)
    out = tmp_path / "recall"
    student = tmp_path / "students" / "gated_deltanet"
    options = ["--out", str(out), "--tokens", "8192", "--spans", "2"]
    main([str(path), *options, f"student={student}", f"itself={teacher_folder}"])
    printed = capsys.readouterr().out
    assert printed == (out / "summary.csv").read_text()
    assert printed.splitlines()[0].startswith(
        "student,kl_128,kl_512,kl_2048,kl_4096,agreement_512,retained_128,retained_512,kl_new,"
    )
    measured = {name: json.loads((out / f"{name}.json").read_text()) for name in ("student", "itself")}
    itself, made = summary(measured["itself"]), summary(measured["student"])
    assert itself["kl_512"] == pytest.approx(0, abs=1e-6)
    gains = {f"gain_{found['gap']}": found["student_gain"] for found in measured["student"]["spans"]}
    assert gains == {name: value for name, value in made.items() if name.startswith("gain_")}
    assert itself["agreement_512"] == itself["retained_512"] == 1
    assert 0 <= made["retained_512"] < 1
    assert made["kl_512"] > 1e-3
    for each in measured.values():
        for length in (128, 512, 2048, 4096):
            rows = {found["class"]: found for found in each["text"] if found["length"] == length}
            assert rows["all"]["tokens"] == 8192 - 8192 // length
            assert sum(rows[name]["tokens"] for name in CLASSES) == rows["all"]["tokens"]
            mean = sum(rows[name]["tokens"] * (rows[name]["kl"] or 0) for name in CLASSES)
            assert mean / rows["all"]["tokens"] == pytest.approx(rows["all"]["kl"], abs=1e-9)
        assert [found["gap"] for found in each["spans"]] == [256, 1024, 3072]
    for found in measured["itself"]["spans"]:
        assert found["recall"] in (1, None)
        assert found["student_gain"] == pytest.approx(found["teacher_gain"])
    looks = [json.loads(line) for line in (out / "looks.jsonl").read_text().splitlines()]
    assert [look["student"] for look in looks] == ["student", "itself"]
    main([str(path), "--choose", "itself", *options])
    assert capsys.readouterr().out == "itself\n"


def test_text_that_students_may_have_read_is_refused(tmp_path, small_recipe, stage, teacher_folder):
    table = tmp_path / "text.jsonl"
    table.write_text(json.dumps({"text": "a b c"}) + "\n")
    cases = [
        ({"kind": "local", "files": [str(table)]}, "data.text: has no held-out documents"),
        (
            {"kind": "local", "files": [str(table)], "subset": "train", "repeat_chunk_tokens": 20},
            "every source repeats chunks",
        ),
    ]
    for source, message in cases:
        recipe = small_recipe(teacher_folder, data={"text": source}, stages=[stage("kd", "kd", data="text")])
        path = tmp_path / "recipe.yaml"
        path.write_text(write_recipe(recipe))
        with pytest.raises(ConfigError, match=message):
            main([str(path), f"s={teacher_folder}", "--out", str(tmp_path / "out")])


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="NAME=FOLDER"):
        main(["pocket", "folder", "--out", str(tmp_path)])
    with pytest.raises(ConfigError, match="no student was measured"):
        main(["pocket", "--out", str(tmp_path)])

"""Extensions of another package, used as evalsuite's own: listed, distilled with, evaluated with."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from evalsuite.api import CompareConfig, GateConfig, RunConfig, compare, distill, evaluate, gate, load_run
from evalsuite.cli.entry import main
from evalsuite.distill.recipe import RECIPES
from evalsuite.evaluation.run_paths import read_documents
from evalsuite.models import build_student
from evalsuite.models.checkpoints.fingerprint import plugin_versions, source_hash
from evalsuite.models.checkpoints.load import describe_checkpoint, load_checkpoint
from evalsuite.models.decoder.config import StudentConfig
from evalsuite.tasks.benchmark import FOLDER
from tests.plugin.conftest import PACKAGE

MIXER = "example_retention"
FIXTURE = PACKAGE.parents[1] / "reports" / "fixtures" / "failing"


def recipe(folder: Path, **changes: Any) -> Path:
    """Write a recipe for one student with the example's mixer and objective, trained on a few documents."""
    pocket = yaml.safe_load((RECIPES / "pocket.yaml").read_text())
    stage = pocket["stages"][-1] | {
        "tokens": 2048,
        "objective": "example_distillation",
        "ce_share": 0.25,
        "schedule": {"kind": "example_power", "warmup_ratio": 0, "exponent": 3},
        "optimizer": {"kind": "example_momentum", "momentum": 0.8},
    }
    student = {"mixers": [MIXER], "options": {MIXER: {"decay": 0.9}}}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(pocket | {"student": student, "stages": [stage]} | changes))
    return path


def suite(folder: Path) -> Path:
    """Write a suite of one benchmark that names the example's scorer."""
    facts = yaml.safe_load((FOLDER / "pocket_facts.yaml").read_text())
    del facts["loglikelihood"]
    facts["name"] = "last_words"
    facts["generation"]["scorer"] = "example_last_word"
    (folder / "last_words.yaml").write_text(yaml.safe_dump(facts))
    path = folder / "suite.yaml"
    path.write_text("name: example\ntitle: Example\nlimit: 6\nbenchmarks: [last_words.yaml]\n")
    return path


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("mixers", MIXER),
        ("objectives", "example_distillation"),
        ("schedules", "example_power"),
        ("optimizers", "example_momentum"),
        ("families", "seed_oss"),
        ("selectors", "example_last_layers"),
        ("engines", "example_rereading"),
        ("scorers", "example_last_word"),
        ("benchmarks", "example_capitals"),
        ("transforms", "example_first_letters"),
        ("generators", "example_counting"),
        ("samplers", "example_longest"),
        ("measures", "example_lead"),
    ],
)
def test_every_extension_is_listed_with_its_package(
    example: Path, subject: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", subject]) == 0
    lines = [each for each in capsys.readouterr().out.splitlines() if each.startswith(name)]
    # A mixer has a line in the taxonomy, too.
    assert len(lines) == (2 if subject == "mixers" else 1)
    assert all("[evalsuite-example 1.0]" in line for line in lines)


def test_the_fingerprint_follows_the_code_of_a_mixer(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StudentConfig(describe_checkpoint("pocket").config.to_dict(), [MIXER] * 4)
    before = plugin_versions(config)
    assert before["mixers"] == "evalsuite-example 1.0"
    path = example / "evalsuite_example" / "mixer.py"
    path.write_text(path.read_text().replace("self.options.decay)", "self.options.decay / 2)"))
    source_hash.cache_clear()
    after = plugin_versions(config)
    assert after["mixers"] == before["mixers"]
    assert after != before


def test_a_family_of_teachers_is_one_definition(example: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = AutoConfig.for_model("seed_oss", pad_token_id=0, **sizes, **heads)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        teacher = AutoModelForCausalLM.from_config(config).eval()
    row = torch.arange(12)[None]
    with torch.no_grad():
        student, hybrid = build_student(teacher, "softmax"), build_student(teacher, ["gla", "softmax"])
        assert torch.equal(student(row).logits, teacher(row).logits)
        assert not torch.equal(hybrid(row).logits, teacher(row).logits)


def test_layers_are_selected(example: Path, tmp_path: Path) -> None:
    out = tmp_path / "layers.json"
    command = ["select", str(recipe(tmp_path)), "--selector", "example_last_layers", "--budget", "2"]
    assert main([*command, "--out", str(out), "--quiet"]) == 0
    layers = json.loads(out.read_text())["layers"]
    teacher = describe_checkpoint("pocket").config.num_hidden_layers
    assert layers == [teacher - 2, teacher - 1]


def test_a_student_is_distilled_and_evaluated(example: Path, tmp_path: Path) -> None:
    (student,) = distill(recipe(tmp_path), tmp_path / "students", quiet=True)
    rows = [json.loads(line) for line in (Path(student) / "training.jsonl").read_text().splitlines()]
    for row in rows:
        assert row["loss"] == pytest.approx(0.25 * row["ce"] + 0.75 * row["kl"], rel=1e-4)
    rates = [row["lr"] / rows[0]["lr"] for row in rows]
    assert rates == pytest.approx([(1 - step / (len(rows) - 1)) ** 3 for step in range(len(rows))], abs=1e-3)
    model = load_checkpoint(student, dtype="float32", device="cpu").model
    mixers = [layer.self_attn for layer in model.model.layers]
    assert {type(mixer).__name__ for mixer in mixers} == {"Retention"}
    assert {mixer.options.decay for mixer in mixers} == {0.9}

    run = tmp_path / "run"
    config = RunConfig(
        suite=suite(tmp_path), teacher="pocket", checkpoints=[student], out=run, device="cpu", quiet=True
    )
    evaluate(config)
    samples = load_run(run).samples
    _check_engine(config, samples)
    assert len(samples) == 12
    words = samples["response"].str.split()
    assert (samples["extracted"] == words.map(lambda each: each[-1] if each else "")).all()
    assert set(samples["value.accuracy"]) <= {0.0, 1.0}
    assert pd.Series(samples["value.accuracy"])[samples["checkpoint"] == "pocket"].mean() > 0.5


def test_benchmark_transform_and_generator_are_evaluated(example: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "org__texts" / "default").mkdir(parents=True)
    texts = ["", "one two three", "."]
    pd.DataFrame({"text": texts}).to_parquet(data / "org__texts" / "default" / "test.parquet")
    generation = {"dataset": "evalsuite", "scorer": "exact", "metric": "accuracy", "prompt": "literal"}
    common = {"category": "reasoning", "license": "CC0", "citation": "-"}
    common["generation"] = generation | {"sampling": {"max_new_tokens": 4}}
    source = {"dataset": "org/texts", "split": "test", "transform": "example_first_letters"}
    blocks = {
        "letters": {"source": source | {"transform_args": {"words": 2}}},
        "ones": {"generated": {"generator": "example_counting", "task": "ones", "count": 3}},
    }
    for name, block in blocks.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, "title": name} | block | common))
    path = tmp_path / "suite.yaml"
    path.write_text(
        "name: s\ntitle: S\nbenchmarks:\n- example_capitals\n- ones.yaml\n"
        "- {benchmark: letters.yaml, limit: 2, sampler: example_longest}\n"
    )
    run = tmp_path / "run"
    evaluate(RunConfig(suite=path, checkpoints=["pocket"], out=run, device="cpu", data=data, quiet=True))
    samples = load_run(run).samples.groupby("benchmark")
    assert {each.row["answers"][0] for each in read_documents(run, "letters")} == {"o", "t"}
    assert samples.size().to_dict() == {"example_capitals": 5, "letters": 2, "ones": 3}


def test_a_measure_is_in_every_output_and_gates(example: Path, tmp_path: Path) -> None:
    run = load_run(FIXTURE)
    made = compare(CompareConfig(inputs=[FIXTURE], out=tmp_path))
    table = pd.read_csv(tmp_path / "example_lead.csv")
    assert list(table) == ["label", "benchmark", "protocol", "lead", "lead_low", "lead_high"]
    frame = run.table("example_lead")
    pd.testing.assert_frame_equal(frame, table, check_dtype=False)
    assert len(frame) > 0
    scores = run.scores.set_index(["label", "benchmark", "protocol"])["score"]
    for row in table.itertuples():
        assert 0 <= scores[row.label, row.benchmark, row.protocol] - row.lead < 1
    page = made.page.read_text()
    assert ' id="example_lead"><summary><h3>Lead over guessing</h3>' in page
    assert f"{100 * table['lead'].abs()[0]:.1f}" in page.partition('id="example_lead"')[2]
    assert "lead, points" in made.markdown
    assert "lead, points" in made.text
    assert "example_lead" in pd.read_csv(tmp_path / "leaderboard.csv")
    assert len(json.loads((tmp_path / "report.json").read_text())["example_lead"]) == len(table)
    policy = tmp_path / "policy.yaml"
    for least, code in ((-50, 0), (99, 1)):
        policy.write_text(f"rules: [{{metric: example_lead, protocol: loglikelihood, min: {least}}}]\n")
        assert gate(GateConfig(runs=[FIXTURE], policy=policy)).exit_code == code
        assert gate(GateConfig(runs=[FIXTURE], bounds={"min_example_lead": least})).exit_code == code
        assert main(["gate", str(FIXTURE), "--min-example-lead", str(least)]) == code
    assert main(["gate", str(FIXTURE), "--min-example-lead", "1", "--policy", str(policy)]) == 64
    assert main(["gate", str(FIXTURE), "--min-example-lead", "101"]) == 64


def _check_engine(config: RunConfig, expected: pd.DataFrame) -> None:
    """Evaluate with the example's engine, whose greedy responses are those of the torch engine."""
    out = Path(config.out).with_name("reread")
    evaluate(replace(config, engine="example_rereading", out=out))
    samples = load_run(out).samples
    key = ["checkpoint", "doc_id"]
    assert samples.sort_values(key)["response"].tolist() == expected.sort_values(key)["response"].tolist()
    assert not set(samples["fingerprint"]) & set(expected["fingerprint"])
    engines = json.loads((out / "run.json").read_text())["engines"].values()
    assert {each["engine"] for each in engines} == {"example_rereading"}


@pytest.mark.slow
def test_pip_installs_what_the_other_tests_use(tmp_path: Path) -> None:
    """The entry points that pip writes are those of pyproject.toml, which the fixture copies."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    # A copy: building leaves files in the source folder.
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", str(PACKAGE), str(source)], check=True)
    subprocess.run([*command, "--target", str(site), str(source)], check=True, capture_output=True)
    (found,) = metadata.distributions(name="evalsuite-example", path=[str(site)])
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    assert {(each.group, each.name, each.value) for each in found.entry_points} == {
        (group, name, value)
        for group, points in project["entry-points"].items()
        for name, value in points.items()
    }
    assert (site / "evalsuite_example" / "mixer.py").is_file()

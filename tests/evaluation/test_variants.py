"""Variants of one checkpoint in a run: rows, fingerprints and responses of their own, and distances."""

from pathlib import Path

import pytest

from evalsuite.cli.entry import main
from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.checkpoints import expand_folders, path_suffixes, unique_labels
from evalsuite.evaluation.distances.measure import measure_distances
from evalsuite.foundation import CheckpointError, ConfigError, read_jsonl
from evalsuite.models import build_student, load_checkpoint
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.run import read_manifest

VARIANTS = ("", ":state=bf16", ":weights=int8:state=int8")


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    teacher = load_checkpoint("pocket", dtype="float32", as_decoder=False)
    folder = tmp_path_factory.mktemp("students") / "gla"
    build_student(teacher.model, "gla").save_pretrained(folder)
    teacher.tokenizer.save_pretrained(folder)
    return folder


def test_variants_share_nothing_and_have_distances(student: Path, tmp_path: Path) -> None:
    out, paths = tmp_path / "run", [f"{student}{settings}" for settings in VARIANTS]
    suite = tmp_path / "small.yaml"
    suite.write_text(
        "{name: small, title: One, benchmarks: [{benchmark: pocket_facts, protocols: [loglikelihood]}]}"
    )
    config = RunConfig(
        suite=suite, checkpoints=paths, teacher="pocket", limit=6, out=out, quiet=True, cache=False
    )
    evaluate(config)
    manifest = read_manifest(out)
    labels = {each.label: each for each in manifest.checkpoints}
    assert list(labels) == ["pocket", "gla", "gla (bf16 state)", "gla (int8 weights, int8 state)"]
    assert len(set(manifest.fingerprints.values())) == 4
    counts = [len(list(read_jsonl(path))) for path in (out / "responses").glob("*.jsonl")]
    assert len(counts) == 4
    assert len(set(counts)) == 1
    variant = lineage_of(labels["gla (int8 weights, int8 state)"])
    assert variant.variant_of == f"gla {labels['gla'].weights_id} with int8 weights, int8 state"
    assert lineage_of(labels["gla"]).taxonomy["gla"]["update"] == "additive"
    assert lineage_of(labels["gla"]).state_bytes
    assert not lineage_of(labels["pocket"]).taxonomy
    # No further run of the recipe, over which replicates would be averaged.
    assert variant.recipe is None

    found = measure_distances(out, paths, str(student), dtype="float32", device="cpu", quiet=True)
    kl = {weights: part["kl"].sum() / part["tokens"].sum() for weights, part in found.groupby("weights_id")}
    exact, *rounded = (kl[labels[label].weights_id] for label in list(labels)[1:])
    assert abs(exact) < 1e-9
    assert all(1e-9 < each < 0.1 for each in rounded)


@pytest.mark.parametrize("engine", ["transformers", "vllm", "endpoint"])
def test_engines_that_do_not_round_refuse_by_name(engine: str, student: Path, tmp_path: Path) -> None:
    config = RunConfig(
        suite="pocket-quick",
        checkpoints=[f"{student}:state=int8"],
        engine=engine,
        out=tmp_path / "run",
        quiet=True,
    )
    with pytest.raises(ConfigError, match=f"engine {engine} does not round weights or states"):
        evaluate(config)


def test_bench_refuses_variants_whose_speed_is_that_of_the_original(
    student: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", f"{student}:state=int8"]) >= 64
    assert "changes neither speed nor memory; leave out 'state=int8'" in capsys.readouterr().err


def test_settings_of_a_folder_are_those_of_its_checkpoints(student: Path) -> None:
    assert expand_folders([f"{student.parent}:weights=fp8"]) == [f"{student}:weights=fp8"]
    assert unique_labels(["a/x", "b/x", "b/x:state=bf16"]) == ["a/x", "b/x", "x (bf16 state)"]
    assert path_suffixes("b/x.gguf:weights=int8") == ["x (int8 weights)", "b/x (int8 weights)"]
    with pytest.raises(CheckpointError, match="unknown setting 'dtype'"):
        expand_folders([f"{student}:dtype=int8"])

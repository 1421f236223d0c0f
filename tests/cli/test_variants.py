"""Recipe and variants become jobs of an executor, in the order in which they need each other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalsuite.cli.commands.distill import recipes
from evalsuite.cli.entry import build_parser, main
from evalsuite.executors import Channel, Job, Worker
from evalsuite.variants import Variant, distill_variants

RECIPE = {
    "name": "tiny",
    "title": "Tiny",
    "teacher": "pocket",
    "student": {"mixers": ["gla"]},
    "data": {"pocket": {"kind": "pocket", "max_haystack_tokens": 64}},
    "stages": [
        {
            "name": "kd",
            "objective": "kd",
            "data": "pocket",
            "tokens": 256,
            "seq_len": 64,
            "batch_size": 2,
            "lr": 1e-3,
        }
    ],
    "variants": {
        "other-seed": {"seed": 1},
        "longer": {"student.initial_checkpoints": {"gla": ":other-seed"}, "seed": 2},
    },
}


class Recorded:
    """An executor of two workers that notes which jobs it gets together."""

    def __init__(self) -> None:
        self.waves: list[list[str]] = []

    def workers(self, gpus: int | None) -> int:
        """Two."""
        return 2

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Note the jobs."""
        self.waves.append([str(job) for job in jobs])
        for index, job in enumerate(jobs):
            yield index, {"students": [job.prepare()["out"] / "gla"]}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    return path


def test_what_starts_from_another_comes_after_it(recipe: Path, tmp_path: Path) -> None:
    chosen = recipes(build_parser().parse_args(["distill", str(recipe), "--variants", "all"]))
    executor = Recorded()
    made = list(distill_variants([Variant(*each, tmp_path, {"device": "cpu"}) for each in chosen], executor))
    assert executor.waves == [["distill tiny", "distill variants/other-seed"], ["distill variants/longer"]]
    assert made == [tmp_path / each / "gla" for each in ("", "variants/other-seed", "variants/longer")]


@pytest.mark.long
def test_students_of_two_workers_are_those_of_one_process(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    for name, options in (
        ("one", []),
        ("two", ["--executor", "slurm", "--executor-args", "cluster=local", "gpus=0", "num_workers=2"]),
    ):
        command = ["distill", str(recipe), "--variants", "all", "--device", "cpu", "--quiet"]
        assert main([*command, "--out", str(tmp_path / name), *options]) == 0
    one = tmp_path / "one"
    weights = sorted(path.relative_to(one) for path in one.rglob("model.safetensors"))
    assert len(weights) >= 3
    for path in weights:
        assert (one / path).read_bytes() == (tmp_path / "two" / path).read_bytes(), path

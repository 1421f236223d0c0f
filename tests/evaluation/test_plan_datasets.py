"""The plan names the dataset of a benchmark, which exports to the hub need."""

import pytest

from evalsuite.evaluation.plan import hub_dataset
from evalsuite.reports.run import HubDataset
from evalsuite.tasks.benchmark import load_benchmark


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("arc_easy", HubDataset(id="allenai/ai2_arc", config="ARC-Easy", split="test")),
        ("hellaswag", HubDataset(id="Rowan/hellaswag", split="validation")),
        ("pocket_facts", None),
    ],
)
def test_the_dataset_of_a_benchmark(name: str, dataset: HubDataset | None) -> None:
    assert hub_dataset(load_benchmark(name)) == dataset

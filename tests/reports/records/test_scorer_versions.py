"""A report warns if its checkpoints were scored by different versions."""

from dataclasses import replace
from pathlib import Path

from evalsuite.reports.analysis.result_tensor import load_result_tensor
from evalsuite.reports.records.score_files import pack_rows, read_rows, score_paths
from tests.reports.conftest import SyntheticBenchmark, make_run
from tests.reports.score_edits import SCORER, info_of


def test_unlike_scorer_versions_are_a_warning(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [SyntheticBenchmark("facts", "Facts", "knowledge", 40)],
        {"teacher": 0.8, "student": 0.7},
    )
    said = "responses were scored by different versions"
    assert not any(said in warning for warning in load_result_tensor([run]).warnings)
    path = score_paths(run, "facts", "generation")[0]
    rows = list(read_rows(path).values())
    info = replace(info_of(rows), scorer=replace(SCORER, version="2"))
    path.write_bytes(pack_rows(rows, info))
    (warning,) = [each for each in load_result_tensor([run]).warnings if said in each]
    assert f"{rows[0]['checkpoint']} by simulation 1, synthetic 2" in warning
    assert warning.startswith("Facts: generation")

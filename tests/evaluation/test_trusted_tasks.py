"""A task file of a user can run Python: every phase that reads it needs trust."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from evalsuite.foundation import ConfigError
from tests.evaluation.runs import evaluate_quietly


def test_a_task_file_of_a_user_needs_trust_to_build_and_to_score(crew: Any, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(
        f"open({str(ran)!r}, 'w').write('x')\ndef process(docs):\n    return docs\n"
    )
    (tmp_path / "task.yaml").write_text(
        "task: mine\ndataset_path: none\noutput_type: multiple_choice\ndoc_to_text: '{{goal}}'\n"
        "doc_to_choice: '{{[sol1, sol2]}}'\ndoc_to_target: label\nprocess_docs: !function code.process\n"
        "metric_list: [{metric: acc}]\n"
    )
    benchmark = {
        "name": "mine",
        "title": "Mine",
        "category": "reasoning",
        "license": "MIT",
        "citation": "none",
        "source": {"dataset": "me/mine", "split": "test"},
        "loglikelihood": {"task": str(tmp_path / "task.yaml"), "metric": "acc"},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(benchmark))
    rows = [{"goal": f"goal {n}", "sol1": "do", "sol2": "do not", "label": n % 2} for n in range(5)]
    frozen = tmp_path / "data" / "me__mine" / "default" / "test.parquet"
    frozen.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), frozen)
    suite, run, data = tmp_path / "s.yaml", tmp_path / "run", tmp_path / "data"
    suite.write_text("name: s\ntitle: S\nbenchmarks: [mine.yaml]\n")
    with pytest.raises(ConfigError, match=r"mine: 'task' = .*task\.yaml.*--trust-remote-code"):
        evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=data)
    assert not ran.exists()
    first = ("build", "infer")
    evaluate_quietly(suite=suite, checkpoints=["a"], out=run, data=data, phases=first, trust_remote_code=True)
    ran.unlink()
    with pytest.raises(ConfigError, match="--trust-remote-code"):
        evaluate_quietly(suite=suite, out=run, phases=("score",))
    assert not ran.exists()
    assert evaluate_quietly(suite=suite, out=run, phases=("score",), trust_remote_code=True).missing == 0

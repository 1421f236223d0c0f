"""Scores of lm-pub-quiz by itself on BEAR: its own statements, scoring and accuracy.

It is not a dependency of evalsuite: ``pip install lm-pub-quiz``. `harness_scores.py` is the command.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalsuite.foundation import MissingDependencyError
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.sources.data import open_source
from evalsuite.tasks.sources.documents import all_documents
from tests.parity.reference_harnesses import HarnessInput, Scores, silent

Facts = dict[str, list[dict[str, Any]]]
"""Relation → its facts."""


def is_bear(benchmark: Benchmark) -> bool:
    """Return whether a benchmark is made of BEAR's facts, which lm-pub-quiz can evaluate."""
    return benchmark.source is not None and benchmark.source.transform == "statements"


def pub_quiz_scores(
    given: HarnessInput, checkpoint: Any, data_dir: Path | str | None, batch: int = 1
) -> Scores:
    """Return the accuracy of `lm_pub_quiz.Evaluator` over the facts of the documents.

    Args:
        given: BEAR's documents of a run.
        checkpoint: loaded.
        data_dir: frozen data with the facts and relations.
        batch: statements per forward pass.

    Raises:
        MissingDependencyError: lm-pub-quiz is not installed.
        DataError: missing data.
    """
    try:
        from lm_pub_quiz import Dataset, Evaluator
    except ImportError as error:
        raise MissingDependencyError(
            f"{given.benchmark.name}: lm-pub-quiz is required ({error}); pip install lm-pub-quiz, "
            "or name the other benchmarks with --benchmark"
        ) from error

    source = given.benchmark.source
    assert source is not None
    data = open_source(data_dir)
    relations = {row["relation"]: row for row in data.rows(source.dataset, source.config, "relations")}
    correct = 0.0
    with silent():
        # Rows of the documents hold prompts and choices; lm-pub-quiz needs the facts themselves.
        evaluator = Evaluator.from_model(
            checkpoint.model,
            model_type="CLM",
            tokenizer=checkpoint.tokenizer,
            device=checkpoint.model.device,
            model_name="checkpoint",
        )
        for template, facts in _facts(given, data_dir).items():
            with TemporaryDirectory(prefix="evalsuite-") as folder:
                _write(Path(folder), facts, relations)
                results = evaluator.evaluate_dataset(
                    Dataset.from_path(folder), template_index=template, batch_size=batch
                )
                accuracy = float(results.get_metrics(["accuracy"], accumulate=True)["accuracy"])
                correct += accuracy * sum(map(len, facts.values()))
    return {"acc": correct / len(given.documents)}


def _facts(given: HarnessInput, data_dir: Path | str | None) -> dict[int, Facts]:
    """Return the facts of the documents, by the template that each uses."""
    benchmark = given.benchmark
    source = benchmark.source
    assert source is not None
    facts = open_source(data_dir).rows(source.dataset, source.config, source.split)
    templates = source.transform_args.get("templates", 1)
    (documents,) = all_documents(benchmark, data_dir=data_dir)
    positions = {document.doc_id: number for number, document in enumerate(documents)}
    found: dict[int, Facts] = defaultdict(lambda: defaultdict(list))
    for document in given.documents:
        fact, template = divmod(positions[document.doc_id], templates)
        found[template][facts[fact]["relation"]].append(facts[fact])
    return found


def _write(folder: Path, facts: Facts, relations: Mapping[str, Mapping[str, Any]]) -> None:
    """Write facts as an lm-pub-quiz data set."""
    described = {
        name: {
            key: _plain(relations[name][key])
            for key in ("templates", "answer_space_labels", "answer_space_ids")
        }
        for name in facts
    }
    (folder / "metadata_relations.json").write_text(json.dumps(described))
    for name, rows in facts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _plain(values: Sequence[Any]) -> list[str]:
    return [str(value) for value in values]

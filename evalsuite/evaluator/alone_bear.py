"""What lm-pub-quiz gives by itself on BEAR: its own statements, its own scoring, its own accuracy.

It is not among evalsuite's dependencies: ``pip install lm-pub-quiz``.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalsuite.evaluator.alone import Given, Scores, silent
from evalsuite.foundation import MissingDependencyError
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.data import open_source
from evalsuite.tasks.documents import whole

Facts = dict[str, list[dict[str, Any]]]
"""Relation → its facts."""


def asks_facts(benchmark: Benchmark) -> bool:
    """Whether a benchmark's questions are made of BEAR's facts, so that lm-pub-quiz can ask them itself."""
    return benchmark.source is not None and benchmark.source.derive == "statements"


def pub_quiz_scores(given: Given, checkpoint: Any, data_dir: Path | str | None, batch: int = 1) -> Scores:
    """The accuracy of `lm_pub_quiz.Evaluator` over the facts that the documents were made of.

    Args:
        given: BEAR's documents of a run.
        checkpoint: loaded.
        data_dir: where the facts and relations are read from.
        batch: statements that are read at once.

    Raises:
        MissingDependencyError: lm-pub-quiz is not installed.
        DataError: the data is not there.
    """
    try:
        from lm_pub_quiz import Dataset, Evaluator
    except ImportError as error:
        raise MissingDependencyError(
            f"{given.benchmark.name}: lm-pub-quiz is needed beside it ({error}); pip install lm-pub-quiz, "
            "or name the other benchmarks with --benchmark"
        ) from error

    source = given.benchmark.source
    assert source is not None
    data = open_source(data_dir)
    relations = {row["relation"]: row for row in data.rows(source.dataset, source.config, "relations")}
    right = 0.0
    with silent():
        # The documents' own rows begin with what a tokenizer reads once; lm-pub-quiz is asked for the facts.
        evaluator = Evaluator.from_model(
            checkpoint.model,
            model_type="CLM",
            tokenizer=checkpoint.tokenizer,
            device=checkpoint.model.device,
            model_name="checkpoint",
        )
        for template, facts in _asked(given, data_dir).items():
            with TemporaryDirectory(prefix="evalsuite-") as folder:
                _write(Path(folder), facts, relations)
                results = evaluator.evaluate_dataset(
                    Dataset.from_path(folder), template_index=template, batch_size=batch
                )
                accuracy = float(results.get_metrics(["accuracy"], accumulate=True)["accuracy"])
                right += accuracy * sum(map(len, facts.values()))
    return {"acc": right / len(given.documents)}


def _asked(given: Given, data_dir: Path | str | None) -> dict[int, Facts]:
    """The facts of the documents, by the template that each was asked with."""
    benchmark = given.benchmark
    source = benchmark.source
    assert source is not None
    facts = open_source(data_dir).rows(source.dataset, source.config, source.split)
    templates = source.options.get("templates", 1)
    (documents,) = whole(benchmark, data_dir=data_dir)
    places = {document.doc_id: number for number, document in enumerate(documents)}
    found: dict[int, Facts] = defaultdict(lambda: defaultdict(list))
    for document in given.documents:
        fact, template = divmod(places[document.doc_id], templates)
        found[template][facts[fact]["relation"]].append(facts[fact])
    return found


def _write(folder: Path, facts: Facts, relations: Mapping[str, Mapping[str, Any]]) -> None:
    """Write facts as the folder of a data set of lm-pub-quiz."""
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

"""Logs in the formats of lm-eval and Every Eval Ever, written field by field."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DATE = "2026-01-02T03-04-05.000006"


def sha(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


@dataclass
class Task:
    """One multiple-choice task: `logprobs` of each document's choices, and the gold choice."""

    logprobs: np.ndarray
    gold: Sequence[int]
    version: float = 1.0
    num_fewshot: int = 0
    documents: Sequence[Any] = ()
    """What each document is; the name of the task and a number if empty."""
    planned: int | None = None

    @property
    def correct(self) -> np.ndarray:
        return np.argmax(self.logprobs, axis=1) == np.asarray(self.gold)


def task(seed: int, documents: int = 40, *, skill: float = 2.0, choices: int = 4, **settings: Any) -> Task:
    """Documents of equal gold choices for every seed; a higher skill raises the gold choice."""
    gold = np.random.default_rng(7).integers(choices, size=documents)
    logprobs = np.random.default_rng(seed).normal(-20, 1, (documents, choices))
    logprobs[np.arange(documents), gold] += skill * np.random.default_rng(8).random(documents)
    return Task(logprobs, gold.tolist(), **settings)


def lm_eval_rows(task: Task, name: str) -> list[dict[str, Any]]:
    rows = []
    for number, (logprobs, gold) in enumerate(zip(task.logprobs, task.gold, strict=True)):
        document = task.documents[number] if task.documents else f"{name}, document {number}"
        right = float(np.argmax(logprobs) == gold)
        responses = [[str(float(value)), "False"] for value in logprobs]
        rows.append(
            {
                "doc_id": number,
                "doc": {"question": document},
                "target": str(gold),
                "arguments": {
                    f"gen_args_{i}": {
                        "arg_0": f"{task.num_fewshot} examples. {document}",
                        "arg_1": f" choice {i}",
                    }
                    for i in range(len(logprobs))
                },
                "resps": [[each] for each in responses],
                "filtered_resps": responses,
                "filter": "none",
                "metrics": ["acc", "acc_norm"],
                "doc_hash": sha(document),
                "prompt_hash": sha([task.num_fewshot, document]),
                "target_hash": sha(gold),
                "acc": right,
                "acc_norm": right,
            }
        )
    return rows


@dataclass
class LmEvalLog:
    """A folder as `lm_eval --log_samples --output_path` writes it.

    Change `results` and `rows` before it is written.
    """

    model: str
    tasks: Mapping[str, Task]
    results: dict[str, Any] = field(init=False)
    rows: dict[str, list[dict[str, Any]]] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {name: lm_eval_rows(task, name) for name, task in self.tasks.items()}
        self.results = {
            "results": {name: {"acc,none": float(each.correct.mean())} for name, each in self.tasks.items()},
            "group_subtasks": {},
            "configs": {
                name: {
                    "task": name,
                    "output_type": "multiple_choice",
                    "target_delimiter": " ",
                    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
                }
                for name in self.tasks
            },
            "versions": {name: each.version for name, each in self.tasks.items()},
            "n-shot": {name: each.num_fewshot for name, each in self.tasks.items()},
            "n-samples": {
                name: {"original": 1000, "effective": each.planned or len(each.gold)}
                for name, each in self.tasks.items()
            },
            "config": {
                "model": "hf",
                "model_args": {"pretrained": self.model, "dtype": "float32"},
                "model_num_parameters": 134515008,
                "model_dtype": "torch.float32",
                "model_revision": "main",
                "model_sha": "",
            },
            "date": 1767322800.0,
            "transformers_version": "5.23.0",
            "lm_eval_version": "0.4.13",
            "task_hashes": {},
            "model_name": self.model,
        }

    def write(self, folder: Path) -> Path:
        """Write the log; returns the path that a user would pass."""
        inner = folder / self.model.replace("/", "__")
        inner.mkdir(parents=True, exist_ok=True)
        (inner / f"results_{DATE}.json").write_text(json.dumps(self.results))
        for name, rows in self.rows.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (inner / f"samples_{name}_{DATE}.jsonl").write_text(lines)
        return folder


@dataclass
class EveryEvalEverLog:
    """An aggregate file and its samples; change `aggregate` and `rows`, then write."""

    model: str
    scores: Sequence[float]
    name: str = "questions"
    aggregate: dict[str, Any] = field(init=False)
    rows: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        identifier = f"{self.name}/{self.model}/1"
        self.aggregate = {
            "schema_version": "0.3.0",
            "evaluation_id": identifier,
            "retrieved_timestamp": "1767322800",
            "source_metadata": {
                "source_type": "evaluation_run",
                "source_organization_name": "someone",
                "evaluator_relationship": "third_party",
            },
            "eval_library": {"name": "some_harness", "version": "1"},
            "model_info": {"name": self.model, "id": f"org/{self.model}"},
            "evaluation_results": [
                {
                    "evaluation_result_id": "accuracy",
                    "evaluation_name": self.name,
                    "source_data": {
                        "dataset_name": self.name,
                        "source_type": "other",
                        "samples_number": len(self.scores),
                    },
                    "metric_config": {"metric_id": "accuracy", "lower_is_better": False},
                    "score_details": {"score": float(np.mean(self.scores))},
                }
            ],
        }
        self.rows = [
            {
                "schema_version": "0.3.0",
                "evaluation_id": identifier,
                "model_id": f"org/{self.model}",
                "evaluation_name": self.name,
                "evaluation_result_id": "accuracy",
                "sample_id": str(number),
                "interaction_type": "single_turn",
                "input": {"raw": f"document {number}", "reference": ["yes"]},
                "output": {"raw": ["yes" if score else "no"]},
                "answer_attribution": [
                    {
                        "turn_idx": 0,
                        "source": "output.raw",
                        "extracted_value": "yes" if score else "no",
                        "extraction_method": "regex",
                        "is_terminal": True,
                    }
                ],
                "evaluation": {"score": score, "is_correct": bool(score)},
            }
            for number, score in enumerate(self.scores)
        ]

    def write(self, folder: Path) -> Path:
        """Write both files; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{sha(self.model)[:8]}-0000-4000-8000-000000000000"
        (folder / f"{stem}.json").write_text(json.dumps(self.aggregate))
        (folder / f"{stem}_samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        return folder

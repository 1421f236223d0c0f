"""Scores of the deciding study from raw responses, by scorers written apart from those of evalsuite.

`decision_study.py` is the command.
"""

import hashlib
import json
import re
import string
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

STUDY = Path(__file__).parents[2] / "reports/studies/decision/protocol.yaml"
PROTOCOL = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
DRAWS = 10_000
Responses = Mapping[tuple[str, str], Any]
"""Hash of the request and sampling → response."""


@dataclass(frozen=True)
class Cell:
    """Scores of the same documents by every way. [checkpoint, document]; the teacher comes first."""

    of: str
    name: str
    chance: dict[str, float]
    scores: dict[str, np.ndarray]

    @cached_property
    def drawn(self) -> dict[str, np.ndarray]:
        """Means over documents drawn with replacement. [checkpoint, draw]"""
        count = next(iter(self.scores.values())).shape[1]
        random = np.random.default_rng(list(self.name.encode()))
        weights = random.multinomial(count, [1 / count] * count, DRAWS).T / count
        return {way: scores @ weights for way, scores in self.scores.items()}

    def shares(self, way: str, drawn: bool = False) -> np.ndarray:
        """Percent of the teacher's lead that every checkpoint keeps. [checkpoint, draw]"""
        means = self.drawn[way] if drawn else self.scores[way].mean(1, keepdims=True)
        return 100 * (means - self.chance[way]) / (means[:1] - self.chance[way])

    def lead(self, way: str) -> tuple[float, float]:
        """The teacher's lead in points, and the lower end of its interval."""
        x = 100 * (self.scores[way][0] - self.chance[way])
        return x.mean(), x.mean() - stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5

    def counts(self) -> bool:
        """Whether the teacher leads by enough in every way; completion tasks have another rule."""
        leads = [self.lead(way) for way in self.scores]
        if self.of == "needles":
            return all(low >= 20 for _, low in leads)
        return all(lead >= 10 and low > 0 for lead, low in leads)


def read_shards(paths: Sequence[Path]) -> tuple[dict[str, Responses], dict[str, float]]:
    """Label of a checkpoint, or "teacher" → its responses; label → the last KL on held-out text."""
    found: dict[str, dict[tuple[str, str], Any]] = defaultdict(dict)
    labels, kl = {}, {}
    for path in paths:
        with tarfile.open(path) as archive:
            for member in filter(tarfile.TarInfo.isfile, archive):
                file, name = archive.extractfile(member), Path(member.name)
                assert file is not None
                if member.name == "run.json":
                    manifest = json.load(file)
                elif name.parent.name == "training":
                    logged = [row["validation_kl"] for row in map(json.loads, file) if "validation_kl" in row]
                    kl[name.stem] = logged[-1]
                elif name.parent.name == "responses":
                    for each in map(json.loads, file):
                        found[name.name.partition(".")[0]][tuple(each["key"][:2])] = each["response"]
        for each in manifest["checkpoints"]:
            label = "teacher" if each["role"] == "teacher" else each["label"]
            labels[label] = manifest["engines"][each["weights_id"]]["fingerprint"]
    return {label: found[fingerprint] for label, fingerprint in labels.items()}, kl


@cache
def read_documents(run: Path, benchmark: str) -> dict[str, dict[str, Any]]:
    """Id → the document, and by protocol the keys of its responses with the places of choices."""
    plan = json.loads((run / "run.json").read_text(encoding="utf-8"))["benchmarks"]
    protocols = next(each["protocols"] for each in plan if each["name"] == benchmark)
    found = {each["doc_id"]: each for each in _lines(run / "documents" / f"{benchmark}.jsonl")}
    for each in found.values():
        each["choices"], each["gold"] = _choices(benchmark.removesuffix("_padded"), each["row"])
    for each in _lines(*(run / "requests").glob(f"*/{benchmark}.loglikelihood.jsonl")):
        hashes = [_hash([of["context"], of["continuations"]]) for of in each["score_requests"]]
        found[each["doc_id"]]["loglikelihood"] = [((hashes[of], ""), place) for of, place in each["choices"]]
    for each in _lines(*(run / "requests").glob(f"*/{benchmark}.generation.jsonl")):
        key = _hash(each["prompt"]), protocols["generation"]["sampling"]
        found[each["doc_id"]]["generation"] = [(key, 0)]
    return found


def _lines(*paths: Path) -> Iterator[Any]:
    for path in paths:
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _choices(task: str, row: Mapping[str, Any]) -> tuple[list[str], int]:
    """Choices as lm-eval counts their characters, and the place of the right one."""
    if task == "arc_easy":
        return row["choices"]["text"], row["choices"]["label"].index(row["answerKey"])
    if task == "piqa":
        return [row["sol1"], row["sol2"]], int(row["label"])
    if task == "hellaswag":
        endings = [text.strip().replace(" [title]", ". ") for text in row["endings"]]
        return [re.sub(r"\[.*?\]", "", text).replace("  ", " ") for text in endings], int(row["label"])
    return row["choices"], int(row["gold"])


def score(document: Mapping[str, Any], given: Responses, benchmark: str, protocol: str, metric: str) -> float:
    """One score; a response that is an error counts as wrong."""
    found, gold = [(given[key], place) for key, place in document[protocol]], document["gold"]
    if any(response.get("error") for response, _ in found):
        return 0.0
    if protocol == "generation":
        return score_text(benchmark, document["row"], found[0][0]["text"])
    if metric == "exact_match":
        return float(found[gold][0]["greedy"][found[gold][1]])
    logprobs = np.array([response["logprobs"][place] for response, place in found])
    if metric == "acc_norm":
        logprobs /= [len(text) for text in document["choices"]]
    return float(logprobs.argmax() == gold)


def score_text(benchmark: str, row: Mapping[str, Any], text: str) -> float:
    if benchmark.startswith("needle"):
        return float(row["answers"][0] in text)
    if benchmark.startswith("lambada"):
        return float(re.match(rf"\s*{re.escape(row['text'].split(' ')[-1])}(?![^\W_])", text) is not None)
    if benchmark.startswith(("squad", "nq_passage", "sciq")):
        right = [row["correct_answer"]] if benchmark.startswith("sciq") else row["answers"]["text"]
        # evaluate-v2.0.py leaves out answers without a word.
        return max(_f1(_words(text), words) for words in list(filter(None, map(_words, right))) or [[]])
    if benchmark.startswith(("boolq", "arc_easy")):
        first = text.strip().split("\n")[0]
        line = " ".join(["", *_words(first), ""])
        options = [f" {' '.join(_words(choice)) or choice.strip().lower()} " for choice in row["choices"]]
        # "+1" and "-1" have the same words.
        named = [
            n
            for n, option in enumerate(options)
            if (option in line if options.count(option) == 1 else row["choices"][n].strip() == first.strip())
        ]
        within = {n for n in named for m in named if options[n] != options[m] and options[n] in options[m]}
        return float([n for n in named if n not in within] == [row["gold"]])
    right = row["answers"] if "answers" in row else [row["choices"][row["gold"]].strip()]
    return float("\n".join(part.strip() for part in text.strip().splitlines()) in right)


def _words(text: str) -> list[str]:
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _f1(given: list[str], right: list[str]) -> float:
    shared = (Counter(given) & Counter(right)).total()
    return 2 * shared / (len(given) + len(right)) if given and right else float(given == right)


def read_cells(
    run: Path, checkpoints: Sequence[Responses], chance: Mapping[Any, float], half: str
) -> Iterator[Cell]:
    """All cells, with needles of one half; `chance`: by task and protocol, of the best constant answer."""

    def cell(of: str, name: str, ways: Mapping[str, Any], context: int | None = None) -> Cell:
        scores = {}
        for way, (_, benchmark, *how) in ways.items():
            documents = [each for _, each in sorted(read_documents(run, benchmark).items())]
            own = [each for each in documents if each["context"] == context]
            scores[way] = np.array(
                [[score(each, one, benchmark, *how) for each in own] for one in checkpoints]
            )
        return Cell(of, name, {way: how[0] for way, how in ways.items()}, scores)

    needles, short = PROTOCOL["needles"], PROTOCOL["short_tasks"]
    for task in needles["tasks"]:
        ways = {
            name: (
                way["chance"],
                way["benchmark"].format(task=task, half=needles["halves"][half]),
                way["protocol"],
                way["metric"],
            )
            for name, way in PROTOCOL["ways"].items()
        }
        yield from (cell("needles", f"{task} {length}", ways, length) for length in needles["contexts"])
    for task, how in short["tasks"].items():
        names = {"plain": task, "padded": task + short["suffix"]}
        ways = {way: (how["chance"], name, "loglikelihood", how["metric"]) for way, name in names.items()}
        yield cell("short_tasks", task, ways)
    for task, metrics in PROTOCOL["completion_tasks"].items():
        if (task, "generation") in chance:
            ways = {way: (chance[task, way], task, way, metric) for way, metric in metrics.items()}
            yield cell("completion_tasks", task, ways)

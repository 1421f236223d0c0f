"""Files that are no foreign logs, under every damage: read as they were, or refused by name."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evalsuite.config import read_run_config
from evalsuite.distill import load_recipe
from evalsuite.distill.training.builders import resolve_layer_selection
from evalsuite.evaluation.run_paths import cells_of, open_responses, read_built, read_documents, read_requests
from evalsuite.evaluation.shards.merge import merge_shards
from evalsuite.foundation import EvalsuiteError
from evalsuite.models import build_student
from evalsuite.models.checkpoints.describe import describe
from evalsuite.reports.admission import load_rule
from evalsuite.reports.gate.policy import load_policy
from evalsuite.reports.records.reading import read_run_scores
from evalsuite.reports.records.sidecars import read_selection
from evalsuite.reports.run import read_manifest
from evalsuite.tasks.benchmark import load_benchmark
from evalsuite.tasks.suite import load_suite, resolve
from tests.damage import DAMAGES, JSON_DAMAGES
from tests.evaluation.conftest import tokenizer
from tests.evaluation.test_shard_validation import built

__all__ = ["built", "tokenizer"]

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "tests/reports/fixtures/passing"
LESS = frozenset({"cut at a quarter", "cut in half", "cut at nine tenths", "last bytes cut"})
"""A text that is cut may be a sound one that says less; no reader can know."""
NUMBERS = frozenset({"negative number", "number as null", "huge number"})
"""Of a number that is free: the file says something else, which is no damage."""

COUNTED = frozenset({"empty", "twice"})
"""Refused when the documents are scored, which states their number."""


@dataclass(frozen=True)
class Kind:
    """A file of a folder that is read.

    Args:
        file: below the folder.
        load: reads the folder, and returns what is equal for files that say the same.
        unseen: damages after which the file is another sound one.
        optional: what is read without the file is equal, or the file is one that may be missing.
    """

    file: str
    load: Callable[[Path], Any]
    unseen: frozenset[str] = frozenset()
    optional: bool = False

    @property
    def damages(self) -> Mapping[str, Callable[[Path], None]]:
        """By name."""
        is_json = self.file.endswith((".json", ".jsonl"))
        if is_json:
            return {**DAMAGES, **JSON_DAMAGES}
        # PyYAML takes seconds for it: once is enough.
        slow = () if self.file in ("policy.yaml", "model.safetensors") else ("deep", "deep objects")
        return {name: damage for name, damage in DAMAGES.items() if name not in slow}


def problems(kind: Kind, sound: Path, scratch: Path) -> Iterator[str]:
    """What a reader does with a damaged file that it must not do; for every damage."""
    expected = kind.load(Path(shutil.copytree(sound, scratch / "sound")))
    for name, damage in kind.damages.items():
        folder = Path(shutil.copytree(sound, scratch / f"{len(list(scratch.iterdir()))}"))
        damage(folder / kind.file)
        what = f"{kind.file}, {name}"
        try:
            found = kind.load(folder)
        except EvalsuiteError as error:
            told = str(error)
            if error.exit_code < 64 or Path(kind.file).name not in told or len(told) > 20_000:
                yield f"{what}: {told[:300]}"
        except Exception as error:
            yield f"{what}: {error!r}"[:300]
        else:
            is_missing = kind.optional and not (folder / kind.file).is_file()
            if found != expected and name not in kind.unseen and not is_missing:
                yield f"{what}: read as something else"


def check(kind: Kind, sound: Path, scratch: Path) -> None:
    scratch.mkdir(exist_ok=True)
    found = list(problems(kind, sound, scratch))
    assert not found, "\n".join(found)


def suite(path: Path) -> Any:
    return {benchmark.name: (entry, benchmark) for entry, benchmark in resolve(load_suite(path))}


def selected(path: Path) -> str:
    return resolve_layer_selection(load_recipe("default", [f"student.softmax_layers={path}"])).hash


SINGLE: Mapping[str, tuple[str, Callable[[Path], Any], frozenset[str]]] = {
    # file → a sound one, its reader, and what makes another sound one of it
    "mine.yaml": (
        "name: mine\ntitle: Mine\nlimit: 4\nbenchmarks: [pocket_facts, pocket_cloze]\n",
        suite,
        LESS,
    ),
    "own.yaml": ((ROOT / "tasks/benchmarks/pocket_recall.yaml").read_text(), load_benchmark, LESS),
    "recipe.yaml": (
        (ROOT / "distill/recipes/default.yaml").read_text(),
        lambda path: load_recipe(path).hash,
        LESS,
    ),
    "policy.yaml": ((ROOT / "reports/examples/gate.yaml").read_text(), load_policy, LESS),
    "admission.yaml": (
        "min_documents: 30\nmin_points: 5\n",
        load_rule,
        LESS | {"empty object"},
    ),
    "run.yaml": (
        "suite: pocket-quick\nteacher: pocket\nout: o\nlimit: 5\n",
        read_run_config,
        LESS,
    ),
    "layers.json": (json.dumps({"layers": [5, 2, 3]}), selected, frozenset({"list"})),
    "selection.json": (
        json.dumps({"schema": 2, "selector": "greedy", "layers": [1, 2], "tokens": 5}),
        read_selection,
        frozenset(),
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_files_of_users(name: str, tmp_path: Path) -> None:
    text, read, unseen = SINGLE[name]
    (tmp_path / "sound").mkdir()
    (tmp_path / "sound" / name).write_text(text)
    kind = Kind(name, lambda folder: read(folder / name), unseen)
    check(kind, tmp_path / "sound", tmp_path / "scratch")


def requests(folder: Path) -> Any:
    manifest = read_built(folder)
    return [
        asdict(each)
        for cell in cells_of(manifest)
        for each in read_requests(folder, manifest.checkpoints[0].tokenizer, cell)
    ]


def scores(folder: Path) -> Any:
    return [
        read_run_scores(folder, benchmark.name, protocol).to_dict("list")
        for benchmark in read_manifest(folder).benchmarks
        for protocol in benchmark.protocols
    ]


def test_score_files(tmp_path: Path) -> None:
    for path in sorted((RUN / "scores").iterdir())[::4]:
        kind = Kind(f"scores/{path.name}", lambda folder: repr(scores(folder)), optional=True)
        check(kind, RUN, tmp_path / path.name)


def run_manifest(folder: Path) -> Any:
    manifest = read_built(folder)
    open_responses(folder, manifest)
    return asdict(manifest)


def test_run_folders(built: Path, tmp_path: Path) -> None:
    check(Kind("run.json", run_manifest, NUMBERS), built / "host", tmp_path / "scratch")


def test_requests_and_documents(built: Path, tmp_path: Path) -> None:
    host = built / "host"
    for path in sorted((host / "requests").glob("*/*.jsonl")):
        check(Kind(str(path.relative_to(host)), requests), host, tmp_path / path.name)
    for path in sorted((host / "documents").iterdir()):
        load = lambda folder, name=path.stem: read_documents(folder, name)  # noqa: E731
        unseen = NUMBERS | COUNTED | {"number as text"}
        check(Kind(f"documents/{path.name}", load, unseen), host, tmp_path / path.name)


def test_shards(built: Path, tmp_path: Path) -> None:
    """As a folder whose files all are stated, and as an archive."""
    home = built / "home"

    def merged(name: str) -> Callable[[Path], Any]:
        def load(folder: Path) -> Any:
            run = Path(shutil.copytree(home, f"{folder}-home"))
            merge_shards(run, [folder / name])
            return {path.name: path.read_bytes() for path in (run / "responses").iterdir()}

        return load

    shard = built / "shard"
    files = sorted(str(path.relative_to(shard)) for path in shard.rglob("*") if path.is_file())
    for file in files:
        optional = file == "manifest.json"
        check(Kind(file, merged(""), optional=optional), shard, tmp_path / file.replace("/", "."))
    archive = tmp_path / "archive"
    archive.mkdir()
    shutil.copy(built / "shard.tar.xz", archive)
    check(Kind("shard.tar.xz", merged("shard.tar.xz")), archive, tmp_path / "archives")


CHECKPOINT = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "lineage.json",
)


@pytest.fixture(scope="module")
def student(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student with everything that a checkpoint may have."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    teacher = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes))
    folder = tmp_path_factory.mktemp("student")
    build_student(teacher, ["gla", "softmax"]).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "lineage.json").write_text(json.dumps({"schema": 1, "recipe": "mine", "seed": 3}))
    return folder


@pytest.mark.parametrize("file", CHECKPOINT)
def test_checkpoints(file: str, student: Path, tmp_path: Path) -> None:
    def load(folder: Path) -> str:
        # Names of folders and of the weights, which depend on every byte, and what says where they come from.
        lines = describe(folder).partition("  lineage")[0].splitlines()[3:]
        return "\n".join(lines)

    optional = file in ("tokenizer_config.json", "generation_config.json", "lineage.json")
    unseen = frozenset({"byte flipped in the middle", "byte flipped late", "NUL at its end"})
    kind = Kind(file, load, unseen if file == "model.safetensors" else frozenset(), optional)
    check(kind, student, tmp_path / "scratch")


def test_there_are_many_damaged_files(student: Path, built: Path) -> None:
    shards = sum(path.is_file() for path in (built / "shard").rglob("*"))
    kinds = len(SINGLE) + len(CHECKPOINT) + shards + 6
    assert kinds * len(DAMAGES) > 800

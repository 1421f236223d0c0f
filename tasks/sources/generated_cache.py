"""Frozen documents of a stated length, shared by all models whose tokenizers count alike.

    DIR/generated/<tokenizer_id>/<benchmark>-<hash>.seed<seed>.<context>.jsonl

`tokenizer_id` names the tokenizer (and the chat template, if prompts use it), `hash` covers the generator
and its inputs. The first line holds the requested count. Documents are independent of each other, so the
first ones also serve every smaller count.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, content_hash, read_jsonl
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.sources.data import source_name, verify

Row = dict[str, Any]
FOLDER = "generated"


def generated_path(benchmark: Benchmark, *, tokenizer_id: str, seed: int, context: int) -> Path:
    """Path of the documents of one benchmark and length, relative to the frozen folder."""
    assert benchmark.generated is not None
    settings = benchmark.generated.model_dump(mode="json", exclude={"count"})
    name = f"{benchmark.name}-{content_hash(settings, length=8)}.seed{seed}.{context}.jsonl"
    return Path(FOLDER) / tokenizer_id / name


def read_generated(
    benchmark: Benchmark, *, data: Path | str | None, tokenizer_id: str, seed: int, context: int, count: int
) -> list[Row] | None:
    """Return the first `count` frozen documents, or None if the data folder holds fewer.

    Raises:
        DataError: a changed or damaged file.
    """
    folder = Path(source_name(data))
    path = folder / generated_path(benchmark, tokenizer_id=tokenizer_id, seed=seed, context=context)
    if not path.is_file():
        return None
    verify(folder, path)
    header, *rows = read_jsonl(path)
    if not isinstance(header.get("requested"), int) or not rows:
        raise DataError(f"{path}: its header has no count of requested documents; freeze it again")
    return rows[:count] if header["requested"] >= count else None


def encode_generated(rows: Sequence[Row], requested: int) -> bytes:
    """Encode `rows` as a JSON-lines file.

    Args:
        rows: the documents; fewer than `requested` if the generator ran out of questions.
        requested: the count requested from the generator.
    """
    lines = [{"requested": requested}, *rows]
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines).encode()

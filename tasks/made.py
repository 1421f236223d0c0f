"""Documents of a stated length that were frozen: made once for all models whose tokenizers count alike.

    DIR/generated/<counted>/<benchmark>-<how>.seed<seed>.<context>.jsonl

`counted` names the tokenizer (and the chat template, if prompts go through it), `how` the generator and
what it draws from. The first line says how many were asked for. A document depends on none beside it, so
the first ones are those of every smaller number.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, content_hash, read_jsonl
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.data import verify, where_from

Row = dict[str, Any]
FOLDER = "generated"


def made_path(benchmark: Benchmark, *, counted: str, seed: int, context: int) -> Path:
    """Where the documents of one benchmark and length lie below a frozen folder."""
    assert benchmark.generated is not None
    how = content_hash(benchmark.generated.model_dump(mode="json", exclude={"count"}), length=8)
    return Path(FOLDER) / counted / f"{benchmark.name}-{how}.seed{seed}.{context}.jsonl"


def made_rows(
    benchmark: Benchmark, *, data: Path | str | None, counted: str, seed: int, context: int, count: int
) -> list[Row] | None:
    """Return the first `count` frozen documents, or None if the data folder does not hold so many.

    Raises:
        DataError: a file that was changed or torn.
    """
    folder = Path(where_from(data))
    path = folder / made_path(benchmark, counted=counted, seed=seed, context=context)
    if not path.is_file():
        return None
    verify(folder, path)
    head, *rows = read_jsonl(path)
    if not isinstance(head.get("asked"), int) or not rows:
        raise DataError(f"{path}: does not say how many documents it holds; freeze it again")
    return rows[:count] if head["asked"] >= count else None


def made_content(rows: Sequence[Row], asked: int) -> bytes:
    """The file of `rows`, of which `asked` were asked for: there may be fewer questions to draw from."""
    lines = [{"asked": asked}, *rows]
    return "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines).encode()

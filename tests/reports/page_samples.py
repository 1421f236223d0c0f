"""Reads the samples next to a page as the page does."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def read_script(path: Path) -> dict[str, Any]:
    """Content of one file of samples."""
    name, packed = re.fullmatch(r'evalsuiteSamples\("([^"]+)","([^"]+)"\)\n', path.read_text()).groups()
    assert name == path.name.removesuffix(".js")
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def sample_rows(out: Path) -> list[dict[str, Any]]:
    """Every document of every cell: cell, id, context, question, expected and the responses by checkpoint."""
    rows = []
    for path in sorted((out / "samples").glob("*.js")):
        if re.fullmatch(r".*\.\d+\.js", path.name):
            continue
        index = read_script(path)
        name = path.name.removesuffix(".js")
        total = len(index["documents"])
        shards = [read_script(path.with_name(f"{name}.{n}.js")) for n in range(-(-total // index["shard"]))]
        details = [row for shard in shards for row in shard["rows"]]
        assert len(details) == total
        for at, (document, row) in enumerate(zip(index["documents"], details, strict=True)):
            responses = {
                checkpoint: {
                    "value": index["values"][place][at],
                    "choice": index["choices"][place][at],
                    "outcome": index["outcomes"][place].get(str(at), "ok"),
                    **(row["responses"][place] or {}),
                }
                for place, checkpoint in enumerate(index["checkpoints"])
            }
            context = index["contexts"][at] if "contexts" in index else None
            rows.append(row | {"cell": name, "id": document, "context": context, "responses": responses})
    return rows

"""Unrelated text before prompts: excerpts of whole sentences, drawn by the ids of documents."""

from bisect import bisect_right
from collections.abc import Sequence

from evalsuite.foundation import DataError, content_hash, nearest
from evalsuite.tasks.benchmark import Prefix
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.synthetic.ruler.niah import sentence_ends


def excerpts(how: Prefix, doc_ids: Sequence[str], data: DataSource) -> list[str]:
    """Return the excerpt of each document, followed by the separator.

    Raises:
        DataError: the split has no such column, or fewer words or sentences than an excerpt.
    """
    rows = data.rows(how.dataset, how.config, how.split)
    if how.column not in rows[0]:
        raise DataError(f"{how.dataset}: has no column '{how.column}'{nearest(how.column, rows[0])}")
    words = " ".join(str(row[how.column]) for row in rows).split()
    ends = [0, *sentence_ends(words)] if words else [0]
    starts = ends[: bisect_right(ends, len(words) - how.words)]
    if not starts:
        raise DataError(
            f"{how.dataset}: holds {len(words):,} words, fewer than 'prefix.words' = {how.words:,}"
        )
    found = []
    for doc_id in doc_ids:
        start = starts[int(content_hash([how.seed, doc_id]), 16) % len(starts)]
        end = ends[bisect_right(ends, start + how.words) - 1]
        if end <= start:
            raise DataError(
                f"{how.dataset}: a sentence of more than 'prefix.words' = {how.words:,} words begins with "
                f"{' '.join(words[start : start + 8])!r}"
            )
        found.append(" ".join(words[start:end]) + how.separator)
    return found

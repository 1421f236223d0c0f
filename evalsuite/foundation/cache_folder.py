"""The platform's folder for what can be computed again."""

import os
from pathlib import Path

VARIABLE = "EVALSUITE_CACHE"


def cache_folder() -> Path | None:
    """Return the folder of evalsuite's cache; None if the user has none.

    EVALSUITE_CACHE names it, and an empty value means none. Default: `evalsuite` in XDG_CACHE_HOME, or in
    `~/.cache`.
    """
    own = os.environ.get(VARIABLE)
    if own is not None:
        return Path(own).expanduser() if own else None
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification has relative paths ignored.
        return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "evalsuite"
    except RuntimeError:  # There is no home.
        return None

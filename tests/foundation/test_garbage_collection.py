"""A pause of garbage collection ends as it began, also with an error."""

import gc
from contextlib import suppress

import pytest

from evalsuite.foundation.garbage_collection import collection_paused


@pytest.mark.parametrize("error", [None, ImportError])
@pytest.mark.parametrize("enabled", [True, False])
def test_the_state_before_is_restored(enabled: bool, error: type[Exception] | None) -> None:
    try:
        if not enabled:
            gc.disable()
        with suppress(ImportError), collection_paused():
            assert not gc.isenabled()
            if error is not None:
                raise error
        assert gc.isenabled() is enabled
    finally:
        gc.enable()

"""What all tests share: processes that run side by side do not compete for processors or collect twice."""

import gc
import os

# Imports make many objects that stay, and tests few cycles: looking for them less often saves a quarter of
# the time of collection.
gc.set_threshold(50_000, 20, 20)
# Tests neither read nor write the user's cache; an empty value means none.
os.environ["EVALSUITE_CACHE"] = ""
if "PYTEST_XDIST_WORKER" in os.environ:
    # Before numpy and torch are imported, whose threads would wait for the processors of the other worker.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Exempt what collection imported from garbage collection: it lives until the end."""
    gc.collect()
    gc.freeze()

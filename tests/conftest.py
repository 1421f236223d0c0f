"""What all tests share: processes that run side by side do not compete for processors or collect twice."""

import gc
import os

# Imports and collection make many objects, all of which stay; tests make few cycles.
gc.disable()
gc.set_threshold(50_000, 20, 20)
# What argparse says is English, whatever the language of the machine, and no catalogues are looked for.
os.environ["LANGUAGE"] = "C"
# Tests kill processes, not machines; each of thousands of flushes would wait for the disk.
os.fsync = lambda descriptor: None
# Tests neither read nor write the user's cache; an empty value means none.
os.environ["EVALSUITE_CACHE"] = ""
if "PYTEST_XDIST_WORKER" in os.environ:
    # Before numpy and torch are imported, whose threads would wait for the processors of the other worker.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """Collect garbage from here on, without what lives until the end: all that exists by now."""
    gc.freeze()
    gc.enable()

"""Compilation of a stage's Triton kernels before its first step."""

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from evalsuite.foundation import ConfigError
from evalsuite.models.ops.dispatch import KernelPolicy, kernel_policy, kernel_versions
from evalsuite.models.ops.packages import hash_triton_ahead

_log = logging.getLogger("evalsuite")


class KernelCompilation:
    """Compiles in parallel what a first step launches, and stores timings if kernels are autotuned.

    Without a GPU, or with the policy `torch`, nothing is compiled.

    Args:
        configs: file of measured kernel configurations to prefer.
        autotune: file to which kernels that it lacks are added, timed.

    Raises:
        ConfigError: one of these files is malformed, or kernels cannot run here.
    """

    def __init__(
        self,
        device: torch.device,
        policy: KernelPolicy,
        *,
        configs: Path | None = None,
        autotune: Path | None = None,
        is_main: bool = True,
        quiet: bool = False,
    ) -> None:
        self._autotune, self._is_main, self._quiet = autotune, is_main, quiet
        self._workers: Any = None
        given = autotune or configs
        with kernel_policy(policy):
            if given is not None and device.type != "cuda":
                raise ConfigError(
                    f"kernel configurations {given}: Triton kernels run on CUDA devices, not {device}"
                )
            self._enabled = bool(kernel_versions(device))
        if self._enabled and given is not None:
            from evalsuite.models.ops import tuning

            tuning.install(configs=configs, autotune=autotune)

    def start(self, *, fresh_only: bool = False) -> None:
        """Start the worker processes, which takes seconds, in the background.

        Args:
            fresh_only: not if this machine has compiled kernels before.
        """
        if not self._enabled or self._workers is not None:
            return
        from evalsuite.models.ops.tuning.compile_ahead import CompileWorkers, has_compiled

        hash_triton_ahead()
        if not fresh_only or not has_compiled():
            self._workers = CompileWorkers()

    def import_kernels(self) -> None:
        """Import fla, which takes seconds, in the background.

        Once models are built: two threads that import parts of transformers, whose modules import each other,
        can find some of them half done.
        """
        if self._enabled and "fla.ops" not in sys.modules:
            threading.Thread(target=_import_fla, daemon=True, name="import fla").start()

    def compile(self, work: Callable[[], object], barrier: Callable[[], None]) -> None:
        """Compile the kernels that `work` launches.

        Args:
            work: the forward and backward passes of a step, whose results are discarded.
            barrier: waits for all processes of the run.
        """
        if not self._enabled:
            return
        from evalsuite.models.ops import tuning
        from evalsuite.models.ops.tuning import compile_ahead

        begin = [] if self._workers is None else [self._workers.begin]
        with compile_ahead.record_launches(*begin) as launches:
            work()
        # While workers compile.
        tuning.run_postponed()
        missing = compile_ahead.not_compiled(launches)
        failed: dict[str, str] = {}
        if self._workers is None and len(missing) <= compile_ahead.FEW:
            failed = compile_ahead.compile_in_threads(missing, quiet=self._quiet)
        elif missing:
            self.start()
            failed = self._workers.compile(missing, quiet=self._quiet)
        if failed:
            first = ": ".join(next(iter(failed.items())))
            _log.warning(
                "kernels: %d of %d did not compile ahead, but where they are launched (%s)",
                len(failed),
                len(missing),
                first,
            )
        self.close()
        barrier()

    def save_timings(self) -> None:
        """Write the file of `autotune`."""
        from evalsuite.models.ops import tuning

        active = tuning.active()
        if self._is_main and self._autotune is not None and active is not None and active.target is not None:
            active.target.save(self._autotune)

    def close(self) -> None:
        """End the worker processes."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def _import_fla() -> None:
    # What fails here fails again where it is needed, which reports it.
    with suppress(Exception):
        import fla.ops  # noqa: F401

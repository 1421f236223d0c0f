"""Launch configurations of Triton kernels: measured ones from a file, others by a rule, without timing.

`triton.autotune` times every configuration of a kernel when a new shape occurs, which takes minutes in a
fresh process. `install` makes all autotuned kernels of the process (fla's and ours) take their configuration
from the measured ones of this device, else of the nearest shape, else by a rule; only `autotune` times.
"""

import logging
import math
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalsuite.models.ops import packages
from evalsuite.models.ops.tuning.measured import MeasuredConfigs, device_file

_log = logging.getLogger("evalsuite")

CONFIGS_ENV = "EVALSUITE_KERNEL_CONFIGS"
"""Environment variable with a file of measured configurations, which come before those that are shipped."""
MAX_OCTAVES = 1.0
"""Distance of a shape up to which another shape's measurement is preferred to the rule."""
NOTICE_SECONDS = 5.0
"""Seconds of compiling between two messages."""
WARMUP_MS, REPEAT_MS = 5, 30
"""Untimed and timed milliseconds per configuration when autotuning."""


class KernelTuning:
    """The choice of configurations in this process.

    Args:
        sources: measured configurations, those to prefer first.
        target: where new measurements are added; None: kernels are not timed.
    """

    def __init__(self, sources: Sequence[MeasuredConfigs], target: MeasuredConfigs | None = None) -> None:
        self.sources, self.target = sources, target
        self.recording = False
        """Whether launches are recorded instead of executed (see `compile_ahead`)."""
        self.postponed: dict[Hashable, Callable[[], object]] = {}
        """What waits until they are executed again, by what it is about."""
        self.by_rule: set[str] = set()
        """Kernels that have run with a configuration that was not measured for their shape class."""

    def in_order(self, kernel: str, key: Mapping[str, Any], candidates: Sequence[Any]) -> Iterator[Any]:
        """All candidates, best guess first.

        Args:
            kernel: name of the function.
            key: named arguments of the autotuning key, and `dtypes`.
            candidates: `triton.Config`s that the kernel permits for these arguments.
        """
        found = self.find(kernel, key, candidates)
        if found is None or not found[1]:
            if not self.by_rule:
                _log.warning(
                    "kernels: some have no configuration measured for this device and shape and run with "
                    "one chosen by a rule, which can be slower; `evalsuite distill … --autotune FILE` "
                    "measures them (first: %s)",
                    kernel,
                )
            self.by_rule.add(kernel)
        first = None if found is None else found[0]
        if first is not None:
            yield first
        yield from (config for config in sorted(candidates, key=rule_cost) if config is not first)

    def find(self, kernel: str, key: Mapping[str, Any], candidates: Sequence[Any]) -> tuple[Any, bool] | None:
        """The measured configuration for a key among the candidates, and whether for its shape class."""
        nearest = None
        for source in self.sources:
            for config, octaves in source.find(kernel, key):
                match = next((each for each in candidates if config_dict(each) == config), None)
                if match is not None and octaves == 0:
                    return match, True
                if octaves <= MAX_OCTAVES:
                    nearest = nearest or match
        return None if nearest is None else (nearest, False)


class CompileNotice:
    """Triton's listener, called after each compilation: logs how many there were, and how long they took.

    A training stage compiles ahead, with a progress bar (see `compile_ahead`); this is for all other kernels.
    """

    def __init__(self) -> None:
        self._count = 0
        self._seconds = self._logged = 0.0

    def __call__(self, *, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        """Count a kernel, unless it was read from Triton's cache."""
        if cache_hit:
            return
        self._count += 1
        # In microseconds.
        self._seconds += times.total / 1e6
        if self._seconds >= self._logged + NOTICE_SECONDS:
            self._logged = self._seconds
            _log.warning("kernels: %d compiled in %.0f s, last %s", self._count, self._seconds, src.name)


_active: KernelTuning | None = None


def install(*, configs: Path | None = None, autotune: Path | None = None) -> KernelTuning:
    """Choose the configurations of all autotuned Triton kernels of this process from now on.

    Args:
        configs: file of measured configurations to prefer; default: `$EVALSUITE_KERNEL_CONFIGS`.
        autotune: time the kernels that this file does not contain, and add them to it (see `save`).

    Raises:
        ConfigError: a file is missing or malformed.
    """
    global _active
    import torch
    from triton import knobs
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources, PTXASError

    # Without a device, kernels run in Triton's interpreter.
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    configs = configs or (Path(os.environ[CONFIGS_ENV]) if os.environ.get(CONFIGS_ENV) else None)
    sources = [MeasuredConfigs.load(path) for path in (configs, device_file(device)) if path is not None]
    target = None
    if autotune is not None:
        exists = autotune.exists()
        target = (
            MeasuredConfigs.load(autotune) if exists else MeasuredConfigs(device, packages.package_versions())
        )
        sources.insert(0, target)
    _active = KernelTuning(sources, target)
    patch(Autotuner, (OutOfResources, PTXASError))
    if knobs.compilation.listener is None:
        knobs.compilation.listener = CompileNotice()
    return _active


def active() -> KernelTuning | None:
    """What `install` returned last in this process."""
    return _active


def postpone(key: Hashable, work: Callable[[], object]) -> bool:
    """Whether launches are recorded; then `work`, which needs executed ones, is left to `run_postponed`."""
    if _active is None or not _active.recording:
        return False
    _active.postponed.setdefault(key, work)
    return True


def run_postponed() -> None:
    """Do what had to wait until launches are no longer recorded."""
    if _active is not None:
        postponed, _active.postponed = _active.postponed, {}
        for work in postponed.values():
            work()


def patch(autotuner: Any, failures: tuple[type[Exception], ...]) -> None:
    """Replace the `run` method of triton's Autotuner class (once) by one that asks the active `KernelTuning`.

    Args:
        failures: errors of a configuration that does not fit the device; the next one is then taken.
    """
    if hasattr(autotuner, "run_timed"):
        return
    autotuner.run_timed = autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuning = _active
        if tuning is None or len(self.configs) <= 1:
            return self.run_timed(*args, **kwargs)
        key, named = tuning_key(self, args, kwargs)
        if key in self.cache:
            return self.run_timed(*args, **kwargs)
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        candidates = self.prune_configs(kwargs)
        kernel = self.base_fn.__name__
        if tuning.target is not None and not tuning.target.has(kernel, named):
            if tuning.recording:
                for config in candidates:
                    self.fn.run(*args, **kwargs, **config.all_kwargs())
                return None
            self._do_bench = self.__dict__["do_bench"] = _bench
            result = self.run_timed(*args, **kwargs)
            best, timings = self.cache[key], getattr(self, "configs_timings", {})
            milliseconds = timings[best][0] if best in timings else None
            tuning.target.add(kernel, named, config_dict(best), milliseconds)
            return result
        ordered = list(tuning.in_order(kernel, named, candidates))
        for config in ordered:
            self.cache[key] = config
            try:
                return self.run_timed(*args, **kwargs)
            except failures:
                if config is ordered[-1]:
                    raise
            finally:
                if tuning.recording:
                    self.cache.pop(key, None)
        raise AssertionError("a kernel without candidates")

    autotuner.run = run


def _bench(call: Callable[[], object], quantiles: Sequence[float]) -> Any:
    from triton.testing import do_bench

    return do_bench(call, warmup=WARMUP_MS, rep=REPEAT_MS, quantiles=quantiles)


def tuning_key(
    tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The key under which triton caches a kernel's configuration, and the same with names."""
    known = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    arguments = {name: value for name, value in known.items() if name in tuner.arg_names}
    named = {name: arguments[name] for name in tuner.keys if name in arguments}
    dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
    return (*named.values(), *dtypes), {**named, "dtypes": [name.removeprefix("torch.") for name in dtypes]}


def config_dict(config: Any) -> dict[str, Any]:
    """A `triton.Config` as JSON values, without defaults that no kernel changes."""
    found = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    if config.num_ctas != 1:
        found["num_ctas"] = config.num_ctas
    return found


def rule_cost(config: Any) -> float:
    """Distance of a configuration from blocks of 64, four warps and three stages, in octaves.

    Such a configuration of fla's kernels fits the shared memory of every supported GPU.
    """
    sizes = [v for v in config.kwargs.values() if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    cost = abs(math.log2(config.num_warps) - 2) + 0.5 * abs(config.num_stages - 3)
    return cost + sum(abs(math.log2(size) - 6) for size in sizes)

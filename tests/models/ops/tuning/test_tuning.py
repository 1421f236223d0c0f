"""Measured kernel configurations are chosen without timing; the autotuner is a stand-in for triton's."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalsuite.foundation import ConfigError
from evalsuite.models.ops import tuning
from evalsuite.models.ops.tuning.measured import MeasuredConfigs, device_file


class OutOfSharedMemoryError(Exception):
    """What a configuration raises that does not fit the device."""


@dataclass(eq=False)
class Config:
    kwargs: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1


@dataclass
class Array:
    dtype: str = "torch.bfloat16"


@dataclass
class Autotuner:
    """Triton's Autotuner as far as `tuning` uses it; counts timings and launches."""

    configs: list[Config]
    keys: Sequence[str] = ("K", "H", "IS_VARLEN")
    arg_names: Sequence[str] = ("x", "K", "H", "IS_VARLEN", "BK")
    too_large: int = 10**6
    cache: dict[tuple[Any, ...], Config] = field(default_factory=dict)
    configs_timings: dict[Config, list[float]] = field(default_factory=dict)
    timed: int = 0
    launched: list[Config] = field(default_factory=list)

    def base_fn(self) -> None:
        """Stands for the kernel function."""

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        return [config for config in self.configs if config.kwargs["BK"] <= kwargs["K"]]

    def run(self, *args: Any, **kwargs: Any) -> None:
        key = tuning.tuning_key(self, args, kwargs)[0]
        if key not in self.cache:
            candidates = self.prune_configs(kwargs)
            self.timed += len(candidates)
            self.configs_timings = {config: [1 / config.kwargs["BK"]] for config in candidates}
            self.cache[key] = max(candidates, key=lambda config: config.kwargs["BK"])
        if self.cache[key].kwargs["BK"] >= self.too_large:
            raise OutOfSharedMemoryError
        self.launched.append(self.cache[key])


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> type[Autotuner]:
    """A class of its own for each test, patched."""
    fresh = type("FreshAutotuner", (Autotuner,), {"run": Autotuner.run})
    monkeypatch.setattr(tuning, "_active", None)
    tuning.patch(fresh, (OutOfSharedMemoryError,))
    return fresh


def configs() -> list[Config]:
    return [Config({"BK": size}, warps) for size in (16, 32, 64, 128) for warps in (2, 4)]


def measured(**key: Any) -> MeasuredConfigs:
    found = MeasuredConfigs("NVIDIA Test", {"triton": "3.7.1"})
    full = {"K": 128, "H": 9, "IS_VARLEN": False, "dtypes": ["bfloat16"]} | key
    found.add("base_fn", full, {"BK": 128, "num_warps": 2, "num_stages": 3}, 0.01)
    return found


def launch(kernel: Autotuner, **key: Any) -> dict[str, Any]:
    kernel.run(Array(), **({"K": 128, "H": 9, "IS_VARLEN": False} | key))
    return tuning.config_dict(kernel.launched[-1])


def test_a_measured_shape_is_launched_without_timing(
    tuner: type[Autotuner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "_active", tuning.KernelTuning([measured()]))
    kernel = tuner(configs())
    assert launch(kernel) == {"BK": 128, "num_warps": 2, "num_stages": 3}
    # The number of heads is no part of a shape class.
    assert launch(kernel, H=32) == {"BK": 128, "num_warps": 2, "num_stages": 3}
    assert kernel.timed == 0
    assert caplog.text == ""


def test_packed_sequences_run_as_rows_were_measured() -> None:
    packed = {"K": 128, "H": 9, "IS_VARLEN": True}
    config = {"BK": 128, "num_warps": 2, "num_stages": 3}
    for dtypes in (["bfloat16", "int64", "int64"], ["int32", "bfloat16"]):
        assert list(measured().find("base_fn", packed | {"dtypes": dtypes})) == [(config, 0.0)]
    for dtypes in (["float32", "int64"], ["bfloat16", "bfloat16", "int64"], ["int64"]):
        assert not list(measured().find("base_fn", packed | {"dtypes": dtypes}))


def test_another_shape_runs_by_rule_which_is_said_once(
    tuner: type[Autotuner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuning, "_active", tuning.KernelTuning([measured()]))
    kernel = tuner(configs())
    # The measurement of a shape at most twice as large or small is a better guess than the rule.
    assert launch(kernel, K=256) == {"BK": 128, "num_warps": 2, "num_stages": 3}
    assert launch(kernel, K=512) == {"BK": 64, "num_warps": 4, "num_stages": 3}
    # It is not one here, where blocks of up to 64 are permitted.
    assert launch(kernel, K=64) == {"BK": 64, "num_warps": 4, "num_stages": 3}
    assert kernel.timed == 0
    assert len(caplog.records) == 1
    assert "--autotune" in caplog.text


def test_without_measurements_the_rule_avoids_what_does_not_fit(
    tuner: type[Autotuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_active", tuning.KernelTuning([]))
    kernel = tuner(configs(), too_large=64)
    assert launch(kernel)["BK"] == 32
    assert launch(kernel)["BK"] == 32
    assert kernel.timed == 0
    with pytest.raises(OutOfSharedMemoryError):
        launch(tuner(configs(), too_large=16))


def test_autotuning_adds_what_the_file_lacks(
    tuner: type[Autotuner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = measured()
    active = tuning.KernelTuning([measured(K=64)], target)
    monkeypatch.setattr(tuning, "_active", active)
    kernel = tuner(configs())
    launch(kernel)
    assert kernel.timed == 0, "measured in the file already"
    assert launch(kernel, K=64) == {"BK": 64, "num_warps": 2, "num_stages": 3}
    assert kernel.timed == 6
    target.save(tmp_path / "configs.json")
    again = MeasuredConfigs.load(tmp_path / "configs.json")
    assert again == target
    assert again.kernels["base_fn"][1]["ms"] == 0.01562


def test_recording_launches_every_candidate_only_when_autotuning(
    tuner: type[Autotuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    class Function:
        def run(self, *args: Any, **kwargs: Any) -> None:
            seen.append(kwargs)

    active = tuning.KernelTuning([], MeasuredConfigs("NVIDIA Test", {}))
    active.recording = True
    monkeypatch.setattr(tuning, "_active", active)
    monkeypatch.setattr(Config, "all_kwargs", lambda config: dict(config.kwargs), raising=False)
    kernel = tuner(configs())
    monkeypatch.setattr(kernel, "fn", Function(), raising=False)
    kernel.run(Array(), K=32, H=1, IS_VARLEN=False)
    assert [each["BK"] for each in seen] == [16, 16, 32, 32]
    assert kernel.cache == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not readable as JSON"),
        ("[]", "schema is list, not 1"),
        ('{"schema": 2}', "schema is 2, not 1"),
        ('{"schema": 1}', "'kernels' is missing"),
        ('{"schema": 1, "kernels": {"k": [{"key": {}, "config": {}}]}}', r"kernels.k\[0\] needs a 'key'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "configs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}: .*{message}.*--autotune"):
        MeasuredConfigs.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        MeasuredConfigs.load(tmp_path / "none.json")


def test_shipped_measurements_cover_the_promised_classes() -> None:
    path = device_file("NVIDIA H200")
    assert path is not None
    assert device_file("NVIDIA A100") is None
    shipped = MeasuredConfigs.load(path)
    assert shipped.device == "NVIDIA H200"
    assert set(shipped.versions) == {"flash-linear-attention", "triton"}
    widths = {entry["key"]["WIDTH"] for entry in shipped.kernels["_rms_norm_backward_kernel"]}
    assert widths >= {576, 1024, 2048, 4096}
    for kernel in ("chunk_fwd_kernel_h", "chunk_kda_bwd_kernel_wy_dqkg_fused", "chunk_gla_fwd_kernel_o"):
        assert {entry["key"]["K"] for entry in shipped.kernels[kernel]} >= {64, 128, 256}, kernel
    for kernel, entries in shipped.kernels.items():
        keys = [json.dumps(entry["key"], sort_keys=True) for entry in entries]
        assert len(set(keys)) == len(keys), kernel
        assert all(entry["ms"] is not None and math.isfinite(entry["ms"]) for entry in entries)


def test_compiling_is_reported_every_few_seconds(caplog: pytest.LogCaptureFixture) -> None:
    notice = tuning.CompileNotice()
    for name, seconds in zip("abcde", (3, 9, 3, 4, 1), strict=True):
        times = SimpleNamespace(total=seconds * 10**6)
        notice(src=SimpleNamespace(name=name), times=times, cache_hit=name == "b")
    assert caplog.messages == ["kernels: 2 compiled in 6 s, last c", "kernels: 4 compiled in 11 s, last e"]

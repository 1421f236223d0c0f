"""Unsupported students and options are rejected before vLLM starts; other models are unaffected."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from transformers import AutoConfig, LlamaConfig, PreTrainedModel

from evalsuite.foundation import CheckpointError, ConfigError, MissingDependencyError
from evalsuite.models import MIXERS, StudentConfig, StudentForCausalLM, build_student
from evalsuite.models.inference.vllm.engine import VllmEngine
from evalsuite.models.inference.vllm.process import ENTRY_POINT, vendor_plugin
from evalsuite.models.vllm_plugin import version_problem
from evalsuite.models.vllm_plugin.validation import StudentConfigVerifier, refuse_students, validate_student


def served(config: StudentConfig, **changes: Any) -> Any:
    """The part of vLLM's configuration that the verifier reads."""
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, **changes.pop("parallel", {})}
    plain = {"speculative_config": None, "lora_config": None, "quant_config": None}
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=config),
        parallel_config=SimpleNamespace(**parallel),
        scheduler_config=SimpleNamespace(),
        **{**plain, **changes},
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculative_config": object()}, "cannot be served with speculative decoding; leave it out"),
        ({"lora_config": object(), "quant_config": object()}, "with LoRA or quantization; leave"),
        ({"parallel": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size > 1"),
        ({"parallel": {"tensor_parallel_size": 3}}, "tensor_parallel_size = 3: gla has 4 heads"),
    ],
)
def test_options_of_vllm(
    changes: dict[str, Any], message: str, make_student: Callable[..., StudentForCausalLM]
) -> None:
    config = make_student(["gla", "softmax"]).config
    StudentConfigVerifier.verify_and_update_config(served(config))
    with pytest.raises(ConfigError, match=message):
        StudentConfigVerifier.verify_and_update_config(served(config, **changes))


def test_every_served_mixer_is_supported_on_ranks_that_divide_its_heads(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    for family in ("llama", "mistral", "qwen2", "qwen3"):
        config = make_student([n for n, kind in MIXERS.items() if kind.served_as], family=family).config
        for tp_size in (1, 2, 4):
            validate_student(config, tp_size)
        softmax = make_student("softmax", family=family).config
        with pytest.raises(ConfigError, match=r"= 3: softmax layers have 4 heads on 2 key and value heads"):
            validate_student(softmax, 3)


@pytest.mark.parametrize(
    ("name", "options", "tp_size", "message"),
    [
        (
            "hgrn2",
            {"preset": "native"},
            1,
            "layer 0: hgrn2 with learned_lower_bounds = True .* --engine torch",
        ),
        ("mamba2", {"preset": "native"}, 2, "heads of mamba2 with output_norm = rms_all_heads depend on"),
        ("mesanet", {}, 1, "layer 0: the mixer mesanet cannot be served by vLLM; use --engine torch"),
        ("gla", {"num_heads": 2}, 2, "heads of gla with num_heads = 2 depend on"),
    ],
)
def test_mixer_options_that_cannot_be_served_are_named(
    name: str,
    options: dict[str, Any],
    tp_size: int,
    message: str,
    make_teacher: Callable[..., PreTrainedModel],
) -> None:
    config = build_student(make_teacher(), name, options={name: options}).config
    with pytest.raises(ConfigError, match=message):
        validate_student(config, tp_size)
    if tp_size > 1:
        validate_student(config, 1)


def test_a_mixer_with_an_extra_state_is_rejected(
    monkeypatch: pytest.MonkeyPatch, make_teacher: Callable[..., PreTrainedModel]
) -> None:
    class WithExtraState(MIXERS["gla"]):  # type: ignore[misc]
        name: ClassVar[str] = "with_extra_state"

        def state_shapes(self) -> dict[str, tuple[int, ...]]:
            return {**super().state_shapes(), "memory": (3,)}

    monkeypatch.setitem(MIXERS._items, "with_extra_state", WithExtraState)
    config = build_student(make_teacher(), "with_extra_state").config
    with pytest.raises(
        ConfigError, match=r"layer 0: the mixer with_extra_state cannot be served.*--engine torch"
    ):
        validate_student(config, 1)


def test_an_unsupported_activation_is_rejected(make_teacher: Callable[..., PreTrainedModel]) -> None:
    config = build_student(make_teacher(hidden_act="gelu"), "gla").config
    with pytest.raises(ConfigError, match="supports silu, not 'gelu'"):
        validate_student(config, 1)


def test_layer_types(make_student: Callable[..., StudentForCausalLM]) -> None:
    config = make_student(["gla", "softmax", "sliding_window", "kda"]).config
    StudentConfigVerifier.verify_and_update_model_config(SimpleNamespace(hf_config=config))
    assert config.layer_types == ["linear_attention", "full_attention", "full_attention", "linear_attention"]
    # vLLM must not treat a student without recurrent layers as a hybrid with states.
    config = make_student(["softmax", "sliding_window"]).config
    StudentConfigVerifier.verify_and_update_model_config(SimpleNamespace(hf_config=config))
    assert config.layer_types == ["attention", "attention"]


def test_another_project_with_the_same_architecture_name_is_rejected() -> None:
    with pytest.raises(
        ConfigError, match="model_type 'llama' names the architecture of evalsuite's students"
    ):
        StudentConfigVerifier.verify_and_update_model_config(SimpleNamespace(hf_config=LlamaConfig()))


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.32.0", ""),
        ("0.32.1.post1", ""),
        ("0.32.0+cpu", ""),
        ("0.26.0", ""),
        ("0.29.0", ""),
        ("0.30.1", r"vLLM 0.30.1 is not among the tested versions: .* with 0\.26\.\*, 0\.29\.\*, 0\.32\.\*"),
        ("0.4.1", "vLLM 0.4.1 is too old: .*pip install 'vllm>=0.32,<0.33'"),
        ("0.33.0", "vLLM 0.33.0 is newer than the tested versions"),
        ("0.320.0", "newer"),
        ("1.0", "newer"),
    ],
)
def test_versions(version: str, problem: str) -> None:
    found = version_problem(version)
    assert bool(found) == bool(problem)
    if problem:
        assert re.search(problem, found)


@pytest.fixture
def student_config() -> Iterator[None]:
    """Restore the registration of students."""
    yield
    AutoConfig.register(StudentConfig.model_type, StudentConfig, exist_ok=True)


@pytest.mark.usefixtures("student_config")
def test_an_untested_version_rejects_students_when_their_config_is_read(
    tmp_path: Path, make_student: Callable[..., StudentForCausalLM]
) -> None:
    make_student("gla").config.save_pretrained(tmp_path)
    refuse_students("vLLM 9.9 is newer than the tested versions")
    with pytest.raises(MissingDependencyError, match=r"vLLM 9\.9"):
        AutoConfig.from_pretrained(tmp_path)


def test_a_newer_schema_is_rejected(tmp_path: Path, make_student: Callable[..., StudentForCausalLM]) -> None:
    config = make_student("gla").config
    config.schema = 99
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="schema 99 is newer than this evalsuite supports"):
        AutoConfig.from_pretrained(tmp_path)


def test_the_engine_rejects_unsupported_students_before_it_starts(
    tmp_path: Path, make_student: Callable[..., StudentForCausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation needs no vLLM environment."""
    from evalsuite.models.checkpoints.load import CheckpointInfo

    config = make_student("gla").config
    info = CheckpointInfo("x", str(tmp_path), config, SimpleNamespace(eos_token_id=2), 1, "0" * 16, 1)
    monkeypatch.delenv("EVALSUITE_VLLM_PYTHON", raising=False)
    with pytest.raises(ConfigError, match="tensor_parallel_size = 3"):
        VllmEngine(info, arguments={"tensor_parallel_size": 3})
    with pytest.raises(ConfigError, match="speculative"):
        VllmEngine(info, arguments={"speculative_config": {"method": "ngram"}})
    with pytest.raises(ConfigError, match="cannot be served with quantization = fp8; leave it out"):
        VllmEngine(info, arguments={"quantization": "fp8"})
    with pytest.raises(ConfigError, match="cannot be served with pipeline_parallel_size = 2"):
        VllmEngine(info, arguments={"pipeline_parallel_size": 2})


def test_the_vendored_plugin_imports_no_vllm(tmp_path: Path) -> None:
    """The vendored folder suffices for a Python without evalsuite; vLLM is imported only inside vLLM."""
    root = Path(__file__).resolve().parents[3]
    assert f'evalsuite = "{ENTRY_POINT}"' in (root / "pyproject.toml").read_text()
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='vllm.general_plugins', name='evalsuite')\n"
        "import evalsuite.models; from evalsuite.models.vllm_plugin import validation\n"
        "print(found.value, callable(found.load()))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(vendor_plugin(tmp_path)), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.split() == [ENTRY_POINT, "True"], shown.stderr

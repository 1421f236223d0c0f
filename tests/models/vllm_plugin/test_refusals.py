"""What cannot be served is refused before anything starts, and other models are left alone."""

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
from evalsuite.models.engine.vllm_engine import VllmEngine
from evalsuite.models.vllm_plugin.refusals import ServedChecks, check_student, refuse_students
from evalsuite.models.vllm_plugin.shipping import ENTRY_POINT, ship
from evalsuite.models.vllm_plugin.versions import version_problem


def served(config: StudentConfig, **changes: Any) -> Any:
    """vLLM's configuration, as far as the checks read it."""
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
    ServedChecks.verify_and_update_config(served(config))
    with pytest.raises(ConfigError, match=message):
        ServedChecks.verify_and_update_config(served(config, **changes))


def test_every_mixer_is_served_on_as_many_ranks_as_its_heads_allow(
    make_student: Callable[..., StudentForCausalLM],
) -> None:
    for family in ("llama", "mistral", "qwen2", "qwen3"):
        config = make_student(list(MIXERS), family=family).config
        for ranks in (1, 2, 4):
            check_student(config, ranks)
        softmax = make_student("softmax", family=family).config
        with pytest.raises(ConfigError, match=r"= 3: softmax layers have 4 heads on 2 key and value heads"):
            check_student(softmax, 3)


def test_a_mixer_that_is_more_than_the_recurrence(
    monkeypatch: pytest.MonkeyPatch, make_teacher: Callable[..., PreTrainedModel]
) -> None:
    class Remembering(MIXERS["gla"]):  # type: ignore[misc]
        name: ClassVar[str] = "remembering"

        def state_shapes(self) -> dict[str, tuple[int, ...]]:
            return {**super().state_shapes(), "memory": (3,)}

    monkeypatch.setitem(MIXERS, "remembering", Remembering)
    config = build_student(make_teacher(), "remembering").config
    with pytest.raises(ConfigError, match=r"layer 0: the mixer remembering cannot be served.*--engine torch"):
        check_student(config, 1)


def test_another_activation(make_teacher: Callable[..., PreTrainedModel]) -> None:
    config = build_student(make_teacher(hidden_act="gelu"), "gla").config
    with pytest.raises(ConfigError, match="knows silu, not 'gelu'"):
        check_student(config, 1)


def test_layers_are_named_as_vllm_counts_them(make_student: Callable[..., StudentForCausalLM]) -> None:
    config = make_student(["gla", "softmax", "sliding_window", "kda"]).config
    ServedChecks.verify_and_update_model_config(SimpleNamespace(hf_config=config))
    assert config.layer_types == ["linear_attention", "full_attention", "full_attention", "linear_attention"]
    # No version may take a student of nothing but attention for a hybrid, and look for its states.
    config = make_student(["softmax", "sliding_window"]).config
    ServedChecks.verify_and_update_model_config(SimpleNamespace(hf_config=config))
    assert config.layer_types == ["attention", "attention"]


def test_a_model_of_another_project_under_the_same_name() -> None:
    with pytest.raises(
        ConfigError, match="model_type 'llama' names the architecture of evalsuite's students"
    ):
        ServedChecks.verify_and_update_model_config(SimpleNamespace(hf_config=LlamaConfig()))


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.32.0", ""),
        ("0.32.1.post1", ""),
        ("0.32.0+cpu", ""),
        ("0.26.0", ""),
        ("0.30.1", r"vLLM 0.30.1 is not among those tested: .* with 0\.26\.\* and 0\.32\.\*"),
        ("0.4.1", "vLLM 0.4.1 is too old: .*pip install 'vllm>=0.32,<0.33'"),
        ("0.33.0", "vLLM 0.33.0 is newer than what was tested"),
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
    """Put the registration of students back."""
    yield
    AutoConfig.register(StudentConfig.model_type, StudentConfig, exist_ok=True)


@pytest.mark.usefixtures("student_config")
def test_with_an_untested_version_students_are_refused_when_their_config_is_read(
    tmp_path: Path, make_student: Callable[..., StudentForCausalLM]
) -> None:
    make_student("gla").config.save_pretrained(tmp_path)
    refuse_students("vLLM 9.9 is newer than what was tested")
    with pytest.raises(MissingDependencyError, match=r"vLLM 9\.9"):
        AutoConfig.from_pretrained(tmp_path)


def test_a_newer_schema_is_refused(tmp_path: Path, make_student: Callable[..., StudentForCausalLM]) -> None:
    config = make_student("gla").config
    config.schema = 99
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="schema 99 is newer than this evalsuite knows"):
        AutoConfig.from_pretrained(tmp_path)


def test_the_engine_refuses_before_it_starts(
    tmp_path: Path, make_student: Callable[..., StudentForCausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No environment of vLLM is needed to learn that a student cannot be served."""
    from evalsuite.models.checkpoints import CheckpointInfo

    config = make_student("gla").config
    info = CheckpointInfo("x", str(tmp_path), config, SimpleNamespace(eos_token_id=2), "0" * 16, 1)
    monkeypatch.delenv("EVALSUITE_VLLM_PYTHON", raising=False)
    with pytest.raises(ConfigError, match="tensor_parallel_size = 3"):
        VllmEngine(info, arguments={"tensor_parallel_size": 3})
    with pytest.raises(ConfigError, match="speculative"):
        VllmEngine(info, arguments={"speculative_config": {"method": "ngram"}})
    with pytest.raises(ConfigError, match="cannot be served with quantization = fp8; leave it out"):
        VllmEngine(info, arguments={"quantization": "fp8"})
    with pytest.raises(ConfigError, match="cannot be served with pipeline_parallel_size = 2"):
        VllmEngine(info, arguments={"pipeline_parallel_size": 2})


def test_the_plugin_travels_and_imports_no_vllm(tmp_path: Path) -> None:
    """A Python that has nothing of ours needs no more than the folder; vLLM is imported inside vLLM only."""
    root = Path(__file__).resolve().parents[3]
    assert f'evalsuite = "{ENTRY_POINT}"' in (root / "pyproject.toml").read_text()
    code = (
        "import sys; sys.modules['vllm'] = None\n"
        "from importlib.metadata import entry_points\n"
        "(found,) = entry_points(group='vllm.general_plugins', name='evalsuite')\n"
        "import evalsuite.models; from evalsuite.models.vllm_plugin import refusals\n"
        "print(found.value, callable(found.load()))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ship(tmp_path)), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.stdout.split() == [ENTRY_POINT, "True"], shown.stderr

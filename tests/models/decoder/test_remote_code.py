"""A student's folder is loaded by tools that know nothing of evalsuite, where it is installed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from evalsuite.models import build_student, load_checkpoint, weights_id
from evalsuite.models.inference import ScoreRequest
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.tasks.synthetic.pocket import build_tokenizer

TEXTS = [("Tom has a red", " ball"), ("The", " cat sat on the mat"), ("one two three four five", " six")]


@pytest.fixture
def folder(make_teacher: Callable[..., PreTrainedModel], tmp_path: Path) -> Path:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=build_tokenizer(), eos_token="</s>")
    teacher = make_teacher(vocab_size=len(tokenizer))
    build_student(teacher, ["gated_deltanet", "softmax"]).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def run(code: str, modules: Path) -> str:
    """Run code in a new process that has not imported evalsuite; transformers copies modules to `modules`."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(modules), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@torch.no_grad()
def test_a_process_without_evalsuite_loads_a_student(folder: Path, tmp_path: Path) -> None:
    code = f"""
import sys, torch
from transformers import AutoModelForCausalLM
assert not any(name.startswith("evalsuite") for name in sys.modules)
model = AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True).eval()
assert type(model).__module__ == "evalsuite.models.decoder.model"
with torch.no_grad():
    torch.save(model(torch.arange(20)[None]).logits, {str(tmp_path / "logits.pt")!r})
model.save_pretrained({str(tmp_path / "again")!r})
"""
    run(code, tmp_path / "modules")
    wanted = AutoModelForCausalLM.from_pretrained(folder).eval()(torch.arange(20)[None]).logits
    assert torch.equal(torch.load(tmp_path / "logits.pt"), wanted)
    saved = {path.name for path in (tmp_path / "again").iterdir()}
    assert saved == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_evalsuite_student.py",
    }


@pytest.mark.long
def test_lm_eval_scores_a_student_by_itself(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    code = f"""
import json
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
model = HFLM(pretrained={str(folder)!r}, trust_remote_code=True, device="cpu", dtype="float32", batch_size=2)
requests = [Instance("loglikelihood", {{}}, pair, 0) for pair in {TEXTS!r}]
print(json.dumps([score for score, _ in model.loglikelihood(requests, disable_tqdm=True)]))
"""
    found = json.loads(run(code, tmp_path / "modules").splitlines()[-1])
    engine = TorchEngine(load_checkpoint(folder, dtype="float32"))
    encode = engine.checkpoint.tokenizer.encode
    for (context, continuation), score in zip(TEXTS, found, strict=True):
        start = tuple(encode(context))
        request = ScoreRequest(start, (tuple(encode(context + continuation)[len(start) :]),))
        [(_, response)] = engine.score([request])
        assert response.logprobs[0] == pytest.approx(score, abs=1e-3)


def test_the_same_student_saved_before_has_the_same_weights_id(folder: Path) -> None:
    """Students of before have no `auto_map` and no module."""
    now = weights_id(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    assert config.pop("auto_map")["AutoModelForCausalLM"] == "modeling_evalsuite_student.StudentForCausalLM"
    file.write_text(json.dumps(config))
    (folder / "modeling_evalsuite_student.py").unlink()
    assert weights_id(folder) == now


def test_code_of_other_models_is_part_of_their_weights_id(folder: Path) -> None:
    ids = set()
    for auto_map in ({"AutoModel": "a.A"}, {"AutoModel": "b.B"}):
        (folder / "config.json").write_text(json.dumps({"model_type": "other", "auto_map": auto_map}))
        ids.add(weights_id(folder))
    assert len(ids) == 2

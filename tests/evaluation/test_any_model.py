"""Checkpoints of other people: runs with any causal language model, and refusals in words."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from evalsuite.config import RunConfig
from evalsuite.evaluation import evaluate
from evalsuite.evaluation.run_paths import read_built
from evalsuite.evaluation.shards.export import export_shard
from evalsuite.evaluation.shards.validate import open_shard, read_shard, request_demands
from evalsuite.foundation import CheckpointError, read_json, write_json
from evalsuite.models.checkpoints.load import load_checkpoint
from evalsuite.models.diagnostics.consistency_checks import run_consistency_checks
from evalsuite.models.inference import ScoreRequest
from evalsuite.models.inference.transformers.engine import TransformersEngine
from tests.evaluation.runs import evaluate_quietly
from tests.reports.score_edits import rows_by_cell

SUITE = """
name: s
title: S
limit: 2
benchmarks: [pocket_facts]
"""


@pytest.fixture(scope="module")
def rwkv(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose state engine torch would lose."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "rwkv",
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        attention_hidden_size=32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    folder = tmp_path_factory.mktemp("rwkv")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_run_with_two_families(rwkv: Path, tiny: Path, tmp_path: Path) -> None:
    """A student of another family than its teacher runs in another engine, and the run says so."""
    (tmp_path / "s.yaml").write_text(SUITE)
    config: dict[str, Any] = {"suite": tmp_path / "s.yaml", "quiet": True, "out": tmp_path / "run"}
    summary = evaluate(RunConfig(checkpoints=[str(rwkv)], teacher=str(tiny), **config))
    engines = {each["engine"]: each for each in read_json(tmp_path / "run" / "run.json")["engines"].values()}
    assert sorted(engines) == ["torch", "transformers"]
    assert "notice" not in engines["torch"]
    assert "engine torch cannot: RwkvForCausalLM" in engines["transformers"]["notice"]
    assert summary.notices == {rwkv.name: engines["transformers"]["notice"]}
    assert f"{rwkv.name}: engine transformers runs it, which is slower" in str(summary)
    rows = [row for found in rows_by_cell(tmp_path / "run").values() for row in found]
    assert len([row for row in rows if row["checkpoint"] == rwkv.name]) == len(rows) / 2
    assert {row["outcome"] for row in rows} <= {"ok", "extraction_failed", "truncated", "looped"}
    again = evaluate(RunConfig(checkpoints=[str(rwkv)], teacher=str(tiny), **config))
    assert sum(again.computed.values()) == 0
    export_shard(tmp_path / "run", tmp_path / "shard.zip")
    with open_shard(tmp_path / "shard.zip") as folder:
        run, manifest = tmp_path / "run", read_built(tmp_path / "run")
        shard = read_shard(folder, "shard.zip", run, manifest, partial(request_demands, run, manifest))
    notices = {each.notice for each in shard.engines.values()}
    assert notices == {None, engines["transformers"]["notice"]}


def test_an_engine_that_is_chosen_says_only_what_it_leaves_unused(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    summary = evaluate_quietly(
        suite=tmp_path / "s.yaml", checkpoints=[str(tiny)], out=tmp_path / "run", engine="transformers"
    )
    [engine] = read_json(tmp_path / "run" / "run.json")["engines"].values()
    assert engine["engine"] == "transformers"
    assert (engine["versions"]["batches"], engine["versions"]["cache"]) == ("padded", "batches")
    assert summary.notices == {}


def test_the_doctor_examines_any_model(rwkv: Path) -> None:
    requests = [ScoreRequest((5, 6, 7 + number), ((8, 9), (10,))) for number in range(3)]
    result = run_consistency_checks(load_checkpoint(rwkv), requests)
    checks = {check["name"]: check for check in result["checks"]}
    assert checks["batched"]["max_difference"] < 1e-4
    assert checks["generation"]["changed_responses"] == 0
    assert checks["decode"]["max_difference"] < 1e-4
    assert "RwkvForCausalLM" in checks["packed"]["skipped"]


def test_a_checkpoint_without_a_tokenizer_is_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=f"{folder}: its tokenizer .* cannot be loaded"):
        load_checkpoint(folder)


REMOTE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

    def forward(self, *args, **rest):
        out = super().forward(*args, **rest)
        out.logits = out.logits * FACTOR
        return out
"""


def test_code_of_a_checkpoint_needs_consent_and_is_part_of_the_fingerprint(
    tiny: Path, tmp_path: Path
) -> None:
    prints = set()
    for factor in ("2.0", "3.0"):
        folder = shutil.copytree(tiny, tmp_path / f"own_{factor[0]}")
        (folder / "own.py").write_text(REMOTE.replace("FACTOR", factor))
        names = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
        config = read_json(folder / "config.json") | {"model_type": "own", "auto_map": names}
        write_json(folder / "config.json", config)
        with pytest.raises(CheckpointError, match="--trust-remote-code"):
            load_checkpoint(folder)
        engine = TransformersEngine(load_checkpoint(folder, trust_remote_code=True))
        assert engine.versions["remote_code"]
        prints.add(engine.fingerprint)
    assert len(prints) == 2

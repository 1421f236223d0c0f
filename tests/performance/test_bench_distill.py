"""The training benchmark times the trainer's own steps, and its naive step computes the same loss."""

import json

import pytest
import torch
from transformers import Gemma3TextConfig, LlamaConfig

from evalsuite.distill.training.distributed import ProcessGroup
from tests.performance import bench_distill
from tests.performance.distill_accuracy import _layer
from tests.performance.distill_profile import kind_of
from tests.performance.distill_steps import Bench


@pytest.mark.long
def test_all_steps_are_timed_and_compute_the_same_loss(tmp_path, capsys):
    options = ["--shape", "tiny", "--batch-size", "4", "--seq-len", "32", "--steps", "1", "--device", "cpu"]
    assert bench_distill.main([*options, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "timings.json").read_text())
    timings = results["timings"]
    naive, *ours = timings[:4]
    # Three warmup steps and one timed step from the same initial weights, on the same tokens.
    assert [timing["micro_batch_size"] for timing in ours] == [4, 2, 1]
    assert [timing["loss"] for timing in ours] == pytest.approx([ours[0]["loss"]] * 3, rel=1e-3)
    assert naive["loss"] == pytest.approx(ours[0]["loss"], rel=0.5)
    assert [timing["students"] for timing in timings] == [1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1, 4]
    assert all(timing["tokens_per_second"] > 0 for timing in timings)
    # On a CPU both sides of the comparison run the same arithmetic.
    assert max(error for group in results["accuracy"].values() for error in group.values()) < 1e-4
    printed = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text().strip() in printed
    assert printed.count("4 students sharing one teacher forward") == 2


def test_any_teacher_is_timed(tmp_path, capsys):
    GEMMA.save_pretrained(tmp_path)
    options = ["--teacher", f"{tmp_path}/config.json", "--only", "accuracy", "naive", "kd", "losses"]
    sizes = ["--batch-size", "2", "--seq-len", "16", "--steps", "1", "--device", "cpu"]
    assert bench_distill.main([*options, *sizes]) == 0
    assert "TFLOP/s per GPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix products"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "recurrence"),
        ("causal_conv1d_fwd_kernel", "short convolution"),
        ("_convolution_backward", "short convolution"),
        ("_short_conv_backward_kernel", "short convolution"),
        ("_row_loss", "loss over the vocabulary"),
        ("flash_fwd_kernel", "attention"),
        ("void at::native::elementwise_kernel<…>", "other"),
    ],
)
def test_kernels_are_classified_by_name(kernel, kind):
    assert kind_of(kernel) == kind


GEMMA = Gemma3TextConfig(**bench_distill.TINY, head_dim=16, sliding_window=8)


@pytest.mark.parametrize("mixer", ["gated_deltanet", "gla"])
@pytest.mark.parametrize("teacher", [LlamaConfig(**bench_distill.TINY), GEMMA], ids=["llama", "gemma3"])
def test_gradients_of_bf16_layers_are_compared(mixer, teacher):
    """They are on the fp32 master weights."""
    bench = Bench(teacher, ProcessGroup("cpu"), batch_size=2, seq_len=32, steps=1)
    bench.bf16, bench.dtype = True, torch.bfloat16
    errors = _layer(bench, mixer)
    assert {"output", "d input", "q_proj.weight", "o_proj.weight"} < errors.keys()
    assert 0 < max(errors.values()) < 0.1

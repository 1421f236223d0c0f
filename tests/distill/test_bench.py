"""The speed bench runs the trainer's own steps, and its naive step computes the same loss."""

import json

import pytest

from evalsuite.distill import bench
from evalsuite.distill.bench_profile import kind_of


def test_the_bench_times_every_step_and_all_compute_one_loss(tmp_path, capsys):
    options = ["--tiny", "--rows", "4", "--length", "32", "--steps", "1", "--device", "cpu"]
    bench.main([*options, "--out", str(tmp_path)])
    written = json.loads((tmp_path / "timings.json").read_text())
    timings = written["timings"]
    naive, *ours = timings[:4]
    # Three steps and one more from the same start, on the same tokens.
    assert [at["micro_batch"] for at in ours] == [4, 2, 1]
    assert [at["loss"] for at in ours] == pytest.approx([ours[0]["loss"]] * 3, rel=1e-3)
    assert naive["loss"] == pytest.approx(ours[0]["loss"], rel=0.5)
    assert [at["students"] for at in timings] == [1, 1, 1, 1, 1, 1, 1, 1, 4]
    assert all(at["tokens_per_second"] > 0 for at in timings)
    # On a CPU both sides of the check are the same arithmetic.
    assert max(error for part in written["check"].values() for error in part.values()) < 1e-4
    printed = capsys.readouterr().out
    assert (tmp_path / "table.md").read_text().strip() in printed
    assert "4 students from one teacher forward" in printed


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix products"),
        ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "recurrence"),
        ("causal_conv1d_fwd_kernel", "short convolution"),
        ("_convolution_backward", "short convolution"),
        ("_row_loss", "loss over the vocabulary"),
        ("flash_fwd_kernel", "attention"),
        ("void at::native::elementwise_kernel<…>", "other"),
    ],
)
def test_kernels_are_sorted_by_what_they_do(kernel, kind):
    assert kind_of(kernel) == kind

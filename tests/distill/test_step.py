"""What only CUDA graphs use, in the arithmetic of a CPU."""

import pytest
import torch

from evalsuite.distill import step
from evalsuite.distill.batches import Batch
from evalsuite.distill.end_to_end import end_to_end
from evalsuite.distill.parallel import Parallel
from evalsuite.distill.recipe import Stage
from evalsuite.distill.step import Stepper, Trainee
from evalsuite.models import build_student


@pytest.mark.parametrize("train", ["all", "no_mlp"])
def test_halves_of_a_micro_batch_make_the_gradients_of_the_whole(teacher, stage, train, monkeypatch):
    monkeypatch.setattr(step, "PARTS", 2)
    calls = []
    monkeypatch.setattr(step, "end_to_end", lambda *args: calls.append(0) or end_to_end(*args))
    chosen = Stage.model_validate(stage("s", "kd", train=train, loss={"ce": 0.5, "kl": 1.0}))
    tokens = torch.randint(0, 400, (4, 33), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    found = []
    for halves in (False, True):
        # Copies of another type than the masters', as on CUDA.
        trainees = [
            Trainee(mixer, build_student(teacher, mixer).train(), torch.float64)
            for mixer in ("gated_deltanet", "retnet")
        ]
        for trainee in trainees:
            trainee.enter(chosen)
        stepper = Stepper(teacher.double(), trainees, chosen, Parallel("cpu"))
        stepper._graphs = halves
        stepper._gradients(batch, 1000)
        found.append([stepper._losses, *(trainee.gradients.buffer for trainee in trainees)])
        assert all(parameter.grad is None for trainee in trainees for parameter in trainee._copies)
    assert len(calls) == 1 + 2
    for whole, split in zip(*found, strict=True):
        assert whole.abs().max() > 0
        torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-9)

"""The Triton kernels compute what torch computes, forward and backward (on a CUDA device)."""

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def compare(fast, exact, *leaves: torch.Tensor) -> None:
    """Outputs and gradients of two functions of the same leaves, in fp32."""
    found = []
    for function in (fast, exact):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        outputs = function(*own)
        torch.manual_seed(0)
        sum((out * torch.randn(out.shape, device="cuda")).sum() for out in outputs).backward()
        found.append([*(out.detach() for out in outputs), *(leaf.grad for leaf in own)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [64, 576])
def test_norm_with_and_without_a_residual(width):
    from evalsuite.distill.fused_kernels import norm

    def exact(x, weight, residual=None):
        hidden = x if residual is None else x + residual
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-5) * weight, hidden

    x, weight, residual = draw(3, 501, width), draw(width), draw(3, 501, width)
    compare(lambda x, w: norm(x, w, 1e-5), exact, x, weight)
    compare(lambda x, w, r: norm(x, w, 1e-5, r), exact, x, weight, residual)


def test_squared_distance():
    from evalsuite.distill.kernels import squared_distance

    teacher = draw(2, 77, 576)
    compare(
        lambda s: [squared_distance(s, teacher)[0] / squared_distance(s, teacher)[1]],
        lambda s: [(s - teacher).square().sum() / teacher.square().sum()],
        draw(2, 77, 576),
    )


@pytest.mark.parametrize(("ce", "kl", "temperature"), [(0, 1, 1.0), (0, 1, 2.5), (1, 0, 1.0), (0.5, 2, 1.0)])
@pytest.mark.parametrize("vocabulary", [1000, 49152])
def test_losses_over_the_vocabulary(ce, kl, temperature, vocabulary):
    from evalsuite.distill.chunked_loss import KdForm, _loss_and_gradient
    from evalsuite.distill.kernels import row_losses

    logits, teacher = 3 * draw(64, vocabulary), 3 * draw(64, vocabulary)
    labels = torch.randint(0, vocabulary, (64,), device="cuda")
    weights = torch.rand(64, device="cuda")
    form = KdForm(ce=ce, kl=kl, temperature=temperature)
    expected = _loss_and_gradient(logits.clone(), teacher.clone(), labels, weights, form)
    found = row_losses(logits, teacher, labels, weights, ce=ce, kl=kl, temperature=temperature)
    for a, b in zip((*found, logits), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_replayed_micro_batches_train_as_eager_ones(tokenizer, stage):
    """CUDA graphs change nothing but the time."""
    from evalsuite.distill.batches import Batch, StepData
    from evalsuite.distill.parallel import Parallel
    from evalsuite.distill.recipe import Architecture, Stage
    from evalsuite.distill.setup import from_architecture
    from evalsuite.distill.step import Stepper, Trainee
    from evalsuite.models import build_student

    parallel = Parallel("cuda")
    # The shape of SmolLM2-135M, for which the kernels may have been tuned before.
    sizes = {"hidden_size": 576, "layers": 2, "heads": 9, "kv_heads": 3, "head_dim": 64}
    made = Architecture(tokenizer="pocket", intermediate_size=128, max_length=128, **sizes)
    master = from_architecture(made, len(tokenizer), tokenizer, 0).cuda().eval().requires_grad_(False)
    for parameter in master.parameters():
        parameter.data = parameter.data.bfloat16()
    for objective in ("attention_output", "kd"):
        chosen = Stage.model_validate(stage("s", objective, tokens=12800))
        curves = []
        for graphs in (False, True):
            trainees = [
                Trainee(mixer, build_student(master, mixer).train(), torch.bfloat16)
                for mixer in ("gated_deltanet", "gla", "linear_attention")
            ]
            for trainee in trainees:
                trainee.enter(chosen)
            stepper = Stepper(master, trainees, chosen, parallel, graphs=graphs)
            rows = torch.randint(0, 500, (8, 2, 65), generator=torch.Generator().manual_seed(0)).cuda()
            curve = []
            for number, row in enumerate(rows):
                batch = Batch(row[:, :-1].contiguous(), row[:, 1:].contiguous())
                curve += stepper.step(StepData([batch], 128, 128, {}), number)[0][:, 0].tolist()
            assert bool(stepper._captured) is graphs
            curves.append(curve)
        assert curves[0] == pytest.approx(curves[1], rel=2e-2)
        assert len(set(curves[1])) == len(curves[1])

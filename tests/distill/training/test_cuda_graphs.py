"""CUDA graphs: replayed micro-batches train as eager ones do (on a CUDA device)."""

import pytest
import torch

from evalsuite.distill.recipe.config import ArchitectureConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_step import StudentTrainState, TrainStep
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.models import build_student
from tests.distill.random_models import build_random_model

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


# More students than run at a time, so that two of them share a stream; and longer sequences than kernels for
# short ones take, with which a solver of its own in each layer is captured.
@pytest.mark.parametrize(
    ("mixers", "length"),
    [
        (("gated_deltanet", "gla", "linear_attention", "retnet", "kda"), 64),
        (("mesanet", "rwkv7", "comba", "gated_deltanet_2"), 256),
    ],
)
def test_replayed_micro_batches_train_as_eager_ones(tokenizer, stage, mixers, length):
    process_group = ProcessGroup("cuda")
    # The shape of SmolLM2-135M, for which kernels may already be autotuned.
    architecture = ArchitectureConfig(
        tokenizer="pocket",
        hidden_size=576,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=128,
        max_position_embeddings=256,
    )
    teacher = build_random_model(architecture, len(tokenizer), tokenizer, 0)
    teacher = teacher.cuda().eval().requires_grad_(False)
    for parameter in teacher.parameters():
        parameter.data = parameter.data.bfloat16()
    normalized = {"alignment_loss": {"normalize_by_teacher": True}}
    for objective, options in (
        ("attention_output", {}),
        ("attention_output", normalized),
        ("kd", {}),
        ("kd", {"activation_checkpointing": "block"}),
    ):
        chosen = Stage.model_validate(stage("s", objective, tokens=200 * length, seq_len=length, **options))
        curves = []
        for cuda_graphs in (False, True):
            train_states = [
                StudentTrainState(mixer, build_student(teacher, mixer).train(), torch.bfloat16)
                for mixer in mixers
            ]
            for train_state in train_states:
                train_state.begin_stage(chosen)
            train_step = TrainStep(teacher, train_states, chosen, process_group, cuda_graphs=cuda_graphs)
            drawn = torch.Generator().manual_seed(0)
            tokens = torch.randint(0, 500, (8, 2, length + 1), generator=drawn).cuda()
            curve = []
            for step, sequences in enumerate(tokens):
                batch = MicroBatch(sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous())
                curve += train_step(GlobalBatch([batch], 2 * length, 2 * length, {}), step)["loss"].tolist()
            assert bool(train_step._captured) is cuda_graphs
            curves.append(curve)
        assert curves[0] == pytest.approx(curves[1], rel=2e-2)
        assert len(set(curves[1])) == len(curves[1])

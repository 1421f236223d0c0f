"""Students in transformers' workflows: kept caches, packed rows, trainers, changed configs."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    DynamicCache,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.decoder.cache import CACHE

Make = Callable[..., PreTrainedModel]
KINDS = [
    ["gla", "gla"],
    ["kda", "gated_deltanet"],
    ["softmax", "softmax"],
    ["gla", "softmax"],
    ["sliding_window", "gla"],
    ["sinks", "mlstm"],
]
kinds = pytest.mark.parametrize("mixers", KINDS, ids="-".join)


def make_student(make_teacher: Make, mixers: list[str], **changes: Any) -> StudentForCausalLM:
    """A student in float64 whose mixers are far from the teacher's attention."""
    options: dict[str, dict[str, Any]] = {}
    if "sliding_window" in mixers or "sinks" in mixers:
        sinks = 2 if "sinks" in mixers else 0
        options["sliding_window"] = {"window": 4, "sinks": sinks}
    names = ["sliding_window" if name == "sinks" else name for name in mixers]
    student = build_student(make_teacher(**changes), names, options=options).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return student


def ids(rows: int, length: int, seed: int = 3) -> Tensor:
    return torch.randint(3, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def generate(student: StudentForCausalLM, tokens: Tensor, eos: int | None = 60, **settings: Any) -> Any:
    return student.generate(
        tokens,
        max_new_tokens=5,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=eos,
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )


@kinds
@torch.no_grad()
def test_generation_continues_from_a_kept_cache(make_teacher: Make, mixers: list[str]) -> None:
    student = make_student(make_teacher, mixers)
    # A row that ended would be continued with pads, which the cache holds and a new call masks.
    first = generate(student, ids(2, 7), eos=None)
    sequence = torch.cat([first.sequences, ids(2, 4, seed=5)], 1)
    wanted = generate(student, sequence, use_cache=False)
    found = generate(student, sequence, past_key_values=first[CACHE])
    assert torch.equal(found.sequences, wanted.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(wanted.logits))


@kinds
@torch.no_grad()
def test_a_kept_cache_takes_new_tokens_with_the_whole_mask(make_teacher: Make, mixers: list[str]) -> None:
    student = make_student(make_teacher, mixers)
    whole = ids(1, 11)
    cache = student.model.new_cache()
    student(whole[:, :7], past_key_values=cache)
    wanted = generate(student, whole, use_cache=False)
    mask = torch.ones_like(whole)
    found = generate(student, whole[:, 7:], attention_mask=mask, past_key_values=cache)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(wanted.logits))
    with pytest.raises(ConfigError, match=r"cache holds \d+ tokens.*ends at 4.*pass the whole sequence"):
        generate(student, whole[:, 7:], past_key_values=cache)


@kinds
@pytest.mark.parametrize("by", ["position_ids", "seq_idx", "cu_seq_lens_q"])
@torch.no_grad()
def test_packed_sequences_are_isolated(make_teacher: Make, mixers: list[str], by: str) -> None:
    student = make_student(make_teacher, mixers)
    parts = [ids(1, length, seed=length) for length in (5, 7, 1, 3)]
    lengths = [part.shape[1] for part in parts]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    packing = {
        "position_ids": {"position_ids": positions},
        "seq_idx": {"seq_idx": torch.arange(4).repeat_interleave(torch.tensor(lengths))[None]},
        "cu_seq_lens_q": {"position_ids": positions, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds},
    }[by]
    found = student(torch.cat(parts, 1), output_hidden_states=True, **packing)
    torch.testing.assert_close(found.logits, torch.cat([student(part).logits for part in parts], 1))
    assert found.hidden_states[0].shape == (1, 16, 32)


@kinds
@torch.no_grad()
def test_rows_are_packed_independently(make_teacher: Make, mixers: list[str]) -> None:
    student = make_student(make_teacher, mixers)
    tokens = ids(2, 8)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]])
    logits = student(tokens, position_ids=positions).logits
    wanted = torch.cat([student(tokens[:1, :3]).logits, student(tokens[:1, 3:]).logits], 1)
    torch.testing.assert_close(logits, torch.cat([wanted, student(tokens[1:]).logits]))
    padded = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8])
    pads = torch.tensor([[1, 1, 1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]])
    alone = student(tokens[:1, 3:]).logits
    found = student(tokens, attention_mask=padded, position_ids=pads).logits
    torch.testing.assert_close(found[:1, 3:], alone)


@torch.no_grad()
def test_contradictory_packing_is_refused(make_teacher: Make) -> None:
    student = make_student(make_teacher, ["gla", "softmax"])
    tokens, positions = ids(1, 6), torch.tensor([[0, 1, 2, 0, 1, 2]])
    for mask in (torch.tensor([[0, 1, 1, 1, 1, 1]]), torch.zeros(1, 1, 6, 6, dtype=torch.float64)):
        with pytest.raises(ConfigError, match="attention_mask has pads or four dimensions"):
            student(tokens, attention_mask=mask, position_ids=positions)
    with pytest.raises(ConfigError, match="cannot be used with a cache"):
        student(tokens, position_ids=positions, use_cache=True)
    with pytest.raises(TypeError, match="cu_sequence_lengths"):
        student(tokens, cu_sequence_lengths=None)


@kinds
def test_the_flattening_collator_gives_the_loss_of_separate_rows(
    make_teacher: Make, mixers: list[str]
) -> None:
    student = make_student(make_teacher, mixers)
    rows = [{"input_ids": ids(1, length)[0].tolist()} for length in (6, 9, 2)]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(rows)
    found = student(**batch).loss
    total = sum(
        (len(row["input_ids"]) - 1) * student(tokens, labels=tokens).loss
        for row in rows
        for tokens in [torch.tensor([row["input_ids"]])]
    )
    torch.testing.assert_close(found, total / sum(len(row["input_ids"]) - 1 for row in rows))


def test_trainers_weigh_tokens_and_not_micro_batches(make_teacher: Make, tmp_path: Path) -> None:
    rows = [{"input_ids": ids(1, 12)[0], "labels": ids(1, 12)[0].clone()} for _ in range(4)]
    for row, real in zip(rows, (4, 12, 6, 9), strict=True):
        row["labels"][real:] = -100
    updates = []
    for batch, steps in ((1, 4), (4, 1)):
        student = make_student(make_teacher, ["gla", "softmax"])
        before = student.model.layers[0].mlp.up_proj.weight.detach().clone()
        settings = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            max_steps=1,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
        )
        Trainer(student, settings, train_dataset=rows).train()
        updates.append(student.model.layers[0].mlp.up_proj.weight.detach() - before)
    assert updates[0].abs().max() > 0
    torch.testing.assert_close(*updates)


def test_losses_of_shifted_labels_and_of_a_number_of_items(make_teacher: Make) -> None:
    student, tokens = make_student(make_teacher, ["gla", "softmax"]), ids(2, 6)
    mean = student(tokens, labels=tokens).loss
    shifted = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    torch.testing.assert_close(student(tokens, shift_labels=shifted).loss, mean)
    torch.testing.assert_close(student(tokens, labels=tokens, num_items_in_batch=40).loss, mean / 4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [64, 32])
@torch.no_grad()
def test_resized_embeddings_survive_a_save(
    make_teacher: Make, tmp_path: Path, tied: bool, vocabulary: int
) -> None:
    student = make_student(make_teacher, ["gla", "softmax"], tie_word_embeddings=tied)
    student.resize_token_embeddings(vocabulary)
    student.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = ids(1, 5) % vocabulary
    assert loaded.config.vocab_size == loaded.config.teacher["vocab_size"] == vocabulary
    torch.testing.assert_close(loaded(tokens).logits, student(tokens).logits)


def test_changed_configs_survive_a_save(make_teacher: Make, tmp_path: Path) -> None:
    student = make_student(make_teacher, ["gla", "softmax"])
    before = json.loads(student.config.to_json_string())["teacher"]
    student.config.pad_token_id, student.config.eos_token_id = 3, 5
    student.config.rope_parameters["rope_theta"] = 77.0
    student.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert (loaded.pad_token_id, loaded.eos_token_id) == (3, 5)
    assert loaded.rope_parameters["rope_theta"] == 77.0
    changed = {"pad_token_id", "eos_token_id", "rope_parameters"}
    assert {k: v for k, v in loaded.teacher.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }


@torch.no_grad()
def test_overridden_rotary_positions_reach_the_student(make_teacher: Make, tmp_path: Path) -> None:
    teacher = make_teacher()
    teacher.save_pretrained(tmp_path / "teacher")
    build_student(teacher, "softmax").save_pretrained(tmp_path / "student")
    changes = {
        "rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0},
        "max_position_embeddings": 9999,
    }
    tokens, logits = ids(1, 12), []
    for name in ("teacher", "student"):
        config = AutoConfig.from_pretrained(tmp_path / name, **changes)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, config=config).eval()
        logits.append(model(tokens).logits)
    torch.testing.assert_close(logits[0], logits[1])
    assert not torch.allclose(logits[0], teacher(tokens).logits)
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert again.config.max_position_embeddings == again.config.base.max_position_embeddings == 9999
    torch.testing.assert_close(again(tokens).logits, logits[0])


def test_configs_answer_what_tools_read(make_teacher: Make) -> None:
    config = make_student(make_teacher, ["gla", "softmax", "sliding_window"], layers=3).config
    assert config.layer_types == ["linear_attention", "full_attention", "sliding_attention"]
    assert config.sliding_window is None
    assert (config.hidden_act, config.use_cache) == ("silu", True)
    assert config.rope_parameters["rope_type"] == "default"
    windows = make_student(make_teacher, ["sliding_window"] * 2).config
    assert (windows.layer_types, windows.sliding_window) == (["sliding_attention"] * 2, 4)
    with pytest.raises(AttributeError, match="no attribute 'num_experts'"):
        _ = config.num_experts


@pytest.mark.parametrize("mixers", [["gla", "softmax"], ["softmax", "kda"]], ids="-".join)
@torch.no_grad()
def test_foreign_caches_are_refused(make_teacher: Make, mixers: list[str]) -> None:
    student = make_student(make_teacher, mixers)
    for cache in (DynamicCache(), DynamicCache(config=student.config), object()):
        with pytest.raises(ConfigError, match=r"no place for the state of layer \d.*new_cache\(\)"):
            student(ids(1, 4), past_key_values=cache)


@torch.no_grad()
def test_output_arguments_are_obeyed_or_refused(make_teacher: Make, tmp_path: Path) -> None:
    student = make_student(make_teacher, ["gla", "softmax"])
    tokens = ids(1, 4)
    assert isinstance(student(tokens, return_dict=False), tuple)
    student.save_pretrained(tmp_path)
    decoder = AutoModel.from_pretrained(tmp_path)
    assert isinstance(decoder(tokens, return_dict=False), tuple)
    student.config.output_hidden_states = True
    assert len(student(tokens).hidden_states) == 3
    with pytest.raises(ConfigError, match="output_attentions"):
        student(tokens, output_attentions=True)
    with pytest.raises(ConfigError, match="no tokens"):
        student(tokens[:, :0])


@kinds
@torch.no_grad()
def test_students_can_be_pickled(make_teacher: Make, mixers: list[str]) -> None:
    student = make_student(make_teacher, mixers)
    again = pickle.loads(pickle.dumps(student))
    assert torch.equal(again(ids(1, 6)).logits, student(ids(1, 6)).logits)

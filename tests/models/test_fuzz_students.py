"""Random students respond alike in every way that must not matter.

However a text is read (in one pass, in parts or token by token with a cache, packed, padded, after saving
and loading), the logits are those of the text alone. With softmax layers only they are the teacher's. A
campaign over other seeds:

    EVALSUITE_FUZZ_SEEDS=1000:3000 pytest tests/models/test_fuzz_students.py
"""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evalsuite.models import StudentForCausalLM, build_student
from tests.models.fuzzing import random_student, seeds

VOCABULARY = 61
GAP = 2


def random_ids(rng: random.Random, length: int) -> Tensor:
    return torch.tensor([[rng.randrange(1, VOCABULARY) for _ in range(length)]])


def random_lengths(rng: random.Random, total: int) -> list[int]:
    """Lengths of one or more parts of `total` tokens; some have one token, which is where states begin."""
    cuts = sorted(rng.sample(range(1, total), min(total - 1, rng.choice((0, 1, 2, 5)))))
    return [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]


def continued(
    model: StudentForCausalLM, ids: Tensor, lengths: list[int], mask: Tensor | None = None
) -> Tensor:
    """Logits of `ids` [B, T], read in parts of these lengths with a cache."""
    cache, logits, seen = None, [], 0
    for length in lengths:
        part = ids[:, seen : seen + length]
        seen += length
        outputs = model(
            part,
            **({} if mask is None else masked(mask[:, :seen], length)),
            past_key_values=cache,
            use_cache=True,
        )
        cache = outputs.past_key_values
        logits.append(outputs.logits)
    return torch.cat(logits, 1)


def packed(model: StudentForCausalLM, texts: list[Tensor]) -> dict[str, Tensor]:
    """Logits of texts packed into one row, by each way to describe it."""
    row = torch.cat(texts, 1)
    lengths = torch.tensor([text.shape[1] for text in texts])
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    positions = torch.cat([torch.arange(n) for n in lengths.tolist()])[None]
    numbers = torch.arange(len(texts)).repeat_interleave(lengths)[None]
    found = {
        "cu_seqlens": model(row, cu_seqlens=bounds).logits,
        "cu_seq_lens_q": model(row, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds).logits,
        "seq_idx": model(row, seq_idx=numbers).logits,
    }
    if len(texts) > 1:
        # Two equal rows, which must not mix either.
        both = model(row.repeat(2, 1), position_ids=positions.repeat(2, 1)).logits
        found |= {"position_ids": both[:1], "position_ids, second row": both[1:]}
    return found


def padded(texts: list[Tensor], *, left: bool) -> tuple[Tensor, Tensor]:
    """Token ids and mask [B, longest]; pads are tokens like others."""
    longest = max(text.shape[1] for text in texts)
    ids = torch.full((len(texts), longest), 7)
    mask = torch.zeros(len(texts), longest, dtype=torch.long)
    for number, text in enumerate(texts):
        place = slice(longest - text.shape[1], None) if left else slice(0, text.shape[1])
        ids[number, place], mask[number, place] = text[0], 1
    return ids, mask


def masked(mask: Tensor, length: int) -> dict[str, Tensor]:
    """Arguments for the last `length` tokens of a padded batch, as `generate` gives them: some mixers depend
    on positions themselves, not only on their differences."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"attention_mask": mask, "position_ids": positions[:, -length:]}


def with_gaps(text: Tensor, lengths: list[int], rng: random.Random) -> tuple[Tensor, Tensor]:
    """A text [1, T] with pads after each part, as rows of a batch have whose parts differ in length."""
    ids, mask = [], []
    for part in text[0].split(lengths):
        ids += [*part.tolist(), *(rng.randrange(VOCABULARY) for _ in range(GAP))]
        mask += [1] * len(part) + [0] * GAP
    return torch.tensor([ids]), torch.tensor([mask])


def rows_of(logits: Tensor, mask: Tensor) -> list[Tensor]:
    """The logits of each row's own tokens, without those of its pads."""
    return [row[own.bool()][None] for row, own in zip(logits, mask, strict=True)]


@seeds(8, 300)
@torch.no_grad()
def test_a_random_student_reads_a_text_alike_in_every_way(
    make_teacher: Callable[..., PreTrainedModel], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    student = random_student(rng, make_teacher)
    model = student.model
    texts = [random_ids(rng, rng.choice((1, 2, 3, 6, 13, 21, 40))) for _ in range(rng.choice((2, 3, 4)))]
    if rng.random() < 0.3:
        texts[0] = random_ids(rng, rng.randrange(65, 140))  # longer than a chunk of the recurrence
    longest = max(texts, key=lambda text: text.shape[1])
    length = longest.shape[1]

    softmax = build_student(student.teacher, "softmax").eval()
    assert torch.equal(softmax(longest).logits, student.teacher(longest).logits), f"softmax: {student.family}"
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    # In float64, but where a softmax is in float32, in which masked scores of a float64 model overflow.
    tolerance = 1e-3 if student.eager else 1e-5
    if not student.eager:
        model, loaded = model.double(), loaded.double()
    alone = [model(text).logits for text in texts]
    whole = model(longest).logits
    scale = 1 + max(float(logits.abs().max()) for logits in alone)

    def check(way: str, found: Tensor, wanted: Tensor) -> None:
        difference = float((found - wanted).abs().max()) / scale
        assert difference < tolerance, f"seed {seed}, {way}: off by {difference:.1e}; {student}"

    check("saved and loaded", loaded(longest).logits, whole)
    parts = random_lengths(rng, length)
    check("one part with a cache", continued(model, longest, [length]), whole)
    check("token by token", continued(model, longest, [1] * length), whole)
    check(f"in parts of {parts}", continued(model, longest, parts), whole)
    for way, logits in packed(model, texts).items():
        check(f"packed by {way}", logits, torch.cat(alone, 1))
    for left in (False, True):
        ids, mask = padded(texts, left=left)
        side = f"{'left' if left else 'right'} pads"
        logits = model(ids, **masked(mask, ids.shape[1])).logits
        for found, wanted in zip(rows_of(logits, mask), alone, strict=True):
            check(side, found, wanted)
    parts = random_lengths(rng, length)
    for found, wanted in zip(rows_of(continued(model, ids, parts, mask), mask), alone, strict=True):
        check(f"left pads in parts of {parts}", found, wanted)
    if not model.config.windows and "sliding_attention" not in model.config.layer_types:
        # transformers counts pads as tokens of a window.
        ids, mask = with_gaps(longest, parts, rng)
        parts = [each + GAP for each in parts]
        check(
            f"a text with gaps, in parts of {parts}",
            continued(model, ids, parts, mask)[mask.bool()],
            whole[0],
        )

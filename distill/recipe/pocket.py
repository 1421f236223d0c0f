"""The variant `pocket` of every recipe: its stages and students on the embedded teacher, in minutes."""

from collections.abc import Mapping
from typing import Any

POCKET = "pocket"
"""Name of the variant, and of the teacher."""
TOKENS = 100_000
"""Budget of the recipe without variants; those that change tokens keep their ratio to it."""
SEQ_LEN = 256
BATCH_SIZE = 2
HELD_OUT_TOKENS = 16 * SEQ_LEN
"""Of completions some sequences have no token in the loss, as their prompt fills them."""
SOFTMAX_LAYERS = [2]
"""Of the four layers, those that stay softmax in a hybrid: about the quarter that the papers keep."""
SIZES = ("num_heads", "num_qk_heads", "expand_k", "expand_v", "feature_proj", "decay_group_size")
"""Options of mixers that fit the heads of the recipe's teacher; the pocket teacher's give the default."""


def on_pocket(recipe: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The recipe on the embedded teacher: stages, objectives, rates and students stay, sizes and data do not.

    Args:
        recipe: fields of a valid recipe of students.
        tokens: budget of the recipe without variants, which becomes `TOKENS`.
    """
    student, selection, validation = (recipe[key] for key in ("student", "selection", "validation"))

    def scaled(count: int) -> int:
        return max(round(count * TOKENS / tokens), BATCH_SIZE * SEQ_LEN)

    def fitted(each: Mapping[str, Any]) -> dict[str, Any]:
        layers = each["softmax_layers"]
        options = {
            mixer: {key: value for key, value in given.items() if key not in SIZES}
            for mixer, given in each["options"].items()
        }
        return {
            **each,
            "softmax_layers": SOFTMAX_LAYERS if layers else layers,
            "selection": None,
            "options": options,
        }

    named = {name: fitted(each) for name, each in student["named"].items()}
    sizes = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "micro_batch_size": None}
    return {
        **recipe,
        "teacher": POCKET if recipe["teacher"] is not None else None,
        "student": {
            **fitted(student),
            "named": named,
            "shape_from": POCKET if student["shape_from"] is not None else None,
        },
        "data": {
            name: {"kind": "pocket", "max_haystack_tokens": SEQ_LEN, "seed": seed}
            for seed, name in enumerate(recipe["data"])
        },
        "stages": [{**stage, **sizes, "tokens": scaled(stage["tokens"])} for stage in recipe["stages"]],
        "validation": validation and {"every_steps": 50, "tokens": HELD_OUT_TOKENS},
        "checkpoint": {"save_each_stage": False},
        "selection": selection
        and {
            **selection,
            "budget": selection["budget"] and len(SOFTMAX_LAYERS),
            "options": {
                key: scaled(value) if key == "tokens" else value
                for key, value in selection["options"].items()
            },
        },
    }

"""Teacher and recipes of the distiller's tests."""

from tests.distill.conftest import (
    one_thread,
    small_groups,
    small_recipe,
    stage,
    teacher_folder,
    texts_drawn_once,
    tokenizer,
)

__all__ = [
    "one_thread", "small_groups", "small_recipe", "stage", "teacher_folder", "texts_drawn_once", "tokenizer",
]  # fmt: skip

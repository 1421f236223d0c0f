"""Recipes: what a YAML file says of teacher, students, stages, data and token budget."""

from evalsuite.distill.recipe.recipe import (
    CALIBRATED,
    NON_HASHED_FIELDS,
    RECIPES,
    NamedStudent,
    Recipe,
    StudentRecipe,
    known_recipes,
    load_recipe,
    write_recipe,
)

__all__ = [
    "CALIBRATED",
    "NON_HASHED_FIELDS",
    "RECIPES",
    "NamedStudent",
    "Recipe",
    "StudentRecipe",
    "known_recipes",
    "load_recipe",
    "write_recipe",
]

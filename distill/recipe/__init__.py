"""Recipes: what a YAML file says of teacher, students, stages, data and token budget."""

from evalsuite.distill.recipe.recipe import (
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
    "NON_HASHED_FIELDS",
    "RECIPES",
    "NamedStudent",
    "Recipe",
    "StudentRecipe",
    "known_recipes",
    "load_recipe",
    "write_recipe",
]

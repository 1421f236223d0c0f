"""How a student is made: recipes, stages, objectives, data and the trainer."""

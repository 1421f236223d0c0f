"""Studies of training choices: effects under both protocols, and where the gap comes from.

Pure functions over arrays of scores; `training_choices/page/` reads files and writes the page.
"""

"""Harder tasks of the pocket world, for a teacher of about ten million parameters.

Facts of a passage that have to be combined, problems of three steps, instructions with several constraints,
passages, named options, recitation, and needles among needles. Each has wrong responses that differ from the
right one in a single respect, so that both protocols read the same documents.
"""

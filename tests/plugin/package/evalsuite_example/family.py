"""Seed-OSS, whose blocks are Llama's with biases of queries, keys and values."""

from evalsuite.models.decoder.families import Family

EVALSUITE_API = 1

SEED_OSS = Family()

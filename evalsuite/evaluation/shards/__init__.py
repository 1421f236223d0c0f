"""Shards: the responses of one machine, exported to a file and merged into the run at home.

A shard is a run folder (or a ``.tar.xz`` of it) without requests: its manifest, `environment.json`, responses
and the loss curves of the students. Responses are keyed by their requests, so shards may be merged in any
order and repeatedly. `export` needs no pydantic, like inference; `merge` validates with it.
"""

"""Slots of sequences that decode together."""

import torch

from evalsuite.models.inference.torch.kv_cache import KVCache, LayerState
from evalsuite.models.inference.torch.static_cache import StaticCacheView, StaticKVCache


def test_a_slot_that_has_ended_writes_behind_what_others_read() -> None:
    keys = torch.zeros(1, 1, 1, 2)
    sample = KVCache(
        [LayerState(keys, keys)],
        torch.ones(1),
        torch.zeros(1, 1),
        torch.ones(1, 1, dtype=torch.bool),
        in_front=True,
    )
    cache = StaticKVCache(sample, num_slots=3, capacity=8)
    new = torch.arange(1.0, 5).view(2, 1, 1, 2)
    shown, _ = StaticCacheView(cache, 2, 4, torch.tensor([3, 6])).update(new, -new, 0)
    assert shown.shape == (2, 1, 4, 2)
    stored = cache.layers[0]
    assert shown[0, 0, 3].tolist() == stored.keys[0, 0, 3].tolist() == [1, 2]
    assert not shown[1].any()
    assert stored.keys[1, 0, 6].tolist() == [3, 4]
    assert torch.equal(stored.values, -stored.keys)

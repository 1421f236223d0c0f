"""The name of the cache in transformers' forward passes: `cache` since 5.24, `past_key_values` before."""

from transformers.modeling_outputs import BaseModelOutputWithPast

CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"

"""What of a model's structure shows only in texts longer than those that are tried at load.

The checks of `verify_cache` read a few tokens. A window or a switch of rotary frequencies beyond them must be
known from the config, and be one that this engine computes.
"""

from typing import Any

from evalsuite.models.checkpoints.positions import rotary_limit
from evalsuite.models.decoder import StudentConfig
from evalsuite.models.decoder.families import FAMILIES, FOREIGN_WINDOWS
from evalsuite.models.inference.proof import TOKENS

LAYER_TYPES = ("full_attention", "sliding_attention")
"""Types of layers (`layer_types` of a config) that engine torch computes."""
_WINDOWS = ("sliding_window", "window_size", "attention_window_size", "local_window_size")


def unknown_structure(config: Any, max_length: int) -> str | None:
    """Return what in a model this engine may get wrong in texts of up to `max_length` tokens, or None."""
    limit = rotary_limit(config)
    if limit is not None and max_length > limit:
        return (
            f"beyond {limit:,} tokens the angles of its rotary embedding depend on the text's length, and "
            "keys of a shorter text are not those of a longer one"
        )
    if isinstance(config, StudentConfig):
        return None
    inner = config.get_text_config()
    others = set(getattr(inner, "layer_types", None) or ()) - set(LAYER_TYPES)
    if others:
        return f"it has layers of type {', '.join(sorted(others))}"
    if chunk := getattr(inner, "attention_chunk_size", None):
        return f"its attention is in chunks (attention_chunk_size = {chunk})"
    for name in _WINDOWS:
        window = getattr(inner, name, None)
        if (
            isinstance(window, int)
            and window >= TOKENS
            and inner.model_type not in (*FAMILIES, *FOREIGN_WINDOWS)
        ):
            return f"it has windows ({name} = {window}) beyond the {TOKENS} tokens that are tried at load"
    return None

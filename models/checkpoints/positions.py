"""Positions of a model: how many its config states, and whether its positional scheme reaches further.

Beyond the stated positions a model is out of distribution. What can be computed there follows from the
config: a recurrent student without rotary embedding reads any length, a rotary embedding has an angle for
every position, and a table of positions ends.
"""

from typing import Any

from evalsuite.foundation import ConfigError

ROTARY_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles at a position depend on that position alone. Those of others (dynamic,
longrope) change with the longest text of a batch, so that responses would depend on the batch."""


UNLIMITED = 2**31 - 1
"""Positions of a model whose config states none, such as Mamba or one with ALiBi."""

_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length")
"""Fields that state the positions; the last two are MPT's and BLOOM's."""


def stated_positions(config: Any) -> int | None:
    """Return the number of positions that a model's config states; None if it states none."""
    inner = config.get_text_config()
    stated = next((value for name in _NAMES if (value := getattr(inner, name, None))), None)
    return int(stated) if stated else None


def max_positions(config: Any) -> int:
    """Return the number of positions that a model's config states, or `UNLIMITED`."""
    return stated_positions(config) or UNLIMITED


def rotary_limit(config: Any) -> int | None:
    """Tokens up to which rotary angles depend on the position alone, not on the text's length; None: any."""
    limits = [
        int(each.get("original_max_position_embeddings") or stated_positions(config) or 1)
        for each in _rotary_parameters(config)
        if each.get("rope_type", "default") not in ROTARY_TYPES
    ]
    return min(limits, default=None)


def _rotary_parameters(config: Any) -> list[dict[str, Any]]:
    """Rotary embeddings of a config: one, one per type of layer, or none."""
    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [each for each in rotary.values() if isinstance(each, dict)] or ([rotary] if rotary else [])


def check_max_length(config: Any, max_length: int) -> None:
    """Check that a model computes positions up to `max_length`.

    Raises:
        ConfigError: beyond the positions that the config states its positional scheme has no position, or one
            that depends on the other texts of a batch.
    """
    stated = stated_positions(config)
    if stated is None or max_length <= stated or getattr(config, "is_recurrent", False):
        return
    rotary = _rotary_parameters(config)
    if not rotary:
        raise ConfigError(
            f"its positions end at {stated:,}: {type(config.get_text_config()).__name__} has no rotary "
            "embedding, and a table of positions has no entry beyond"
        )
    for each in rotary:
        kind = each.get("rope_type", "default")
        if kind not in ROTARY_TYPES:
            raise ConfigError(
                f"its positions end at {stated:,}: the angles of its rotary embedding (rope_type = '{kind}') "
                "depend on the longest text of a batch"
            )

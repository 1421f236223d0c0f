"""English words for keys and lists, from the package `wonderwords` (MIT) as in RULER."""

from functools import cache

from evalsuite.foundation import MissingDependencyError


@cache
def words(*kinds: str) -> tuple[str, ...]:
    """Return the unique words of these kinds (``noun``, ``verb``, ``adjective``), sorted.

    Raises:
        MissingDependencyError: wonderwords is not installed.
    """
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise MissingDependencyError(
            "RULER's keys and word lists need wonderwords; `pip install wonderwords==3.0.1`"
        ) from error
    drawn = RandomWord(enhanced_prefixes=False)  # Its tries take 0.1 s and only help to find beginnings.
    return tuple(sorted({word for kind in kinds for word in drawn.filter(include_categories=[kind])}))

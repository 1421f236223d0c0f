"""Arguments of chat templates, which Jinja ignores silently if a template does not read them."""

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from evalsuite.foundation.errors import ConfigError, nearest

_OWN = {"messages", "add_generation_prompt"}
_FUNCTIONS = {"raise_exception", "strftime_now"}


def check_template_arguments(template: str | Mapping[str, str], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a chat template does not read.

    Args:
        template: a Jinja template, or several by name, as tokenizers have them.
        arguments: further variables of the template.

    Raises:
        ConfigError: an argument that no template reads (with the nearest that one reads), or that evalsuite
            sets; the message starts with the key `chat_template_kwargs`.
    """
    if not arguments:
        return
    texts = [template] if isinstance(template, str) else list(template.values())
    # transformers marks assistant turns with a tag of its own.
    sources = [re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text) for text in texts]
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        names = set().union(*(find_undeclared_variables(environment.parse(source)) for source in sources))
    except TemplateError as error:
        raise ConfigError(f"the chat template cannot be parsed ({error})") from None
    for name in arguments:
        if name in _OWN:
            raise ConfigError(f"chat_template_kwargs: '{name}' is set by evalsuite")
        if name not in names:
            known = sorted(names - _OWN - _FUNCTIONS)
            raise ConfigError(
                f"chat_template_kwargs: the chat template reads no argument '{name}'{nearest(name, known)}"
            )

"""Few-shot completion prompts: rows of any columns become a prompt, choices and the right one."""

from collections.abc import Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from evalsuite.foundation import DataError
from evalsuite.tasks.benchmark import Completion
from evalsuite.tasks.generator import Row


class Completer:
    """Makes completion prompts of rows.

    Args:
        how: the templates.
        name: of the benchmark, for messages.
    """

    def __init__(self, how: Completion, name: str) -> None:
        environment = SandboxedEnvironment(keep_trailing_newline=True, undefined=StrictUndefined)
        self._how, self._name = how, name
        self._prompt = environment.from_string(how.prompt)
        self._answer = environment.from_string(how.answer)
        self._choices = None if how.choices is None else environment.compile_expression(how.choices)

    def row(self, row: Row, examples: Sequence[Row]) -> Row:
        """Return a row with `prompt` (examples and question), `choices` and `gold`.

        Raises:
            DataError: the templates cannot read a row, or the answer is not among the choices.
        """
        shown = [f"{self._question(each)} {self._right(each)}" for each in examples]
        choices, right = self._options(row), self._right(row)
        if right not in choices:
            raise DataError(f"{self._name}: completion.choices: {choices} lack the answer {right!r}")
        return row | {
            "prompt": self._how.separator.join([*shown, self._question(row)]),
            "choices": [f" {choice}" for choice in choices],
            "gold": choices.index(right),
        }

    def _question(self, row: Row) -> str:
        return self._render(self._prompt, row)

    def _right(self, row: Row) -> str:
        return self._render(self._answer, row).strip()

    def _options(self, row: Row) -> list[str]:
        if self._choices is None:
            return [self._right(row)]
        try:
            found: Any = self._choices(**row)
            return [str(each).strip() for each in found]
        except (TemplateError, TypeError) as error:
            raise DataError(f"{self._name}: completion.choices cannot read a row ({error!r})") from error

    def _render(self, template: Any, row: Row) -> str:
        try:
            return str(template.render(**row))
        except (TemplateError, TypeError, KeyError, IndexError) as error:
            raise DataError(f"{self._name}: completion cannot read a row ({error!r})") from error

"""Each damage changes what lies at a path, and the harmless ones change no value."""

import json
from pathlib import Path

import pytest

from tests.damage import DAMAGES, HARMLESS, JSON_DAMAGES

VALUE = {"b": {"c": 1.5, "ä": [2, None]}, "a": "text"}


@pytest.mark.parametrize("name", [*DAMAGES, *JSON_DAMAGES])
def test_a_damage_changes_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file.json"
    before = json.dumps(VALUE, ensure_ascii=False)
    path.write_text(before)
    {**DAMAGES, **JSON_DAMAGES}[name](path)
    if name in HARMLESS:
        assert json.loads(path.read_text()) == VALUE
    assert not path.is_file() or path.read_bytes() != before.encode()

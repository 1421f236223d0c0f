"""Redaction: absolute paths are reduced to their last component, also within texts."""

import pytest

from evalsuite.reports.exports.redact import last_components


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/me/my models/teacher", "teacher"),
        ("C:\\Users\\me\\r.yaml", "r.yaml"),
        ("distill r --data=/home/me/data /mnt/x/y/", "distill r --data=data y"),
        ("/home/me/engine.py: line 3\nfrom /home/me/a.py", "engine.py: line 3\nfrom a.py"),
        ("log:/home/me/log.txt", "log:log.txt"),
        ("file:///home/me/x.json", "x.json"),
        ("at C:\\Users\\me\\x.txt now", "at x.txt now"),
        ("https://huggingface.co/org/name", "https://huggingface.co/org/name"),
        ("students/gla, ./runs/a/b and ~/x/y", "students/gla, ./runs/a/b and ~/x/y"),
        ("5 tokens /s, and/or", "5 tokens /s, and/or"),
    ],
)
def test_paths_are_reduced_to_their_last_component(text: str, redacted: str) -> None:
    assert last_components({"a": [text, 1]}) == {"a": [redacted, 1]}

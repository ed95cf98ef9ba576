"""The oldest supported Python can parse every file, and `pyproject.toml` names that version."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_every_file_is_python_3_9():
    assert 'requires-python = ">=3.9"' in (ROOT / "pyproject.toml").read_text()
    files = list((ROOT / "src").rglob("*.py"))
    assert len(files) > 5
    for file in files:
        ast.parse(file.read_text(), str(file), feature_version=(3, 9))

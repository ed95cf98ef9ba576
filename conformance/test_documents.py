"""Every code block of the documentation is run as it stands, or says why not. [`documents`] has the rules."""

import re
import subprocess

import pytest

from capacity import items
from documents import PROGRAMS, Section, blocks, pages
from harness import ROOT

pytestmark = pytest.mark.only_cattlegrid

ALL = {page: blocks(page) for page in pages()}
SECTIONS = {}
for page in ALL:
    for block in ALL[page]:
        if block.how == "run":
            SECTIONS.setdefault(f"{page}: {block.section}", []).append(block)


@pytest.mark.parametrize("name", SECTIONS)
def test_section(binary, name):
    section = Section(binary)
    try:
        for block in SECTIONS[name]:
            section.run(block)
    finally:
        section.clean()


@pytest.mark.parametrize("page", ALL)
def test_no_block_is_forgotten(page):
    unmarked = [f"{block} ({block.language or 'no language'})" for block in ALL[page] if not block.how]
    assert not unmarked, f"neither run nor marked, see conformance/documents.py: {unmarked}"


def test_what_runs_a_block_names_its_page():
    """A test that is named exists and reads the page."""
    for block in (block for page in ALL for block in ALL[page] if block.how == "run by"):
        path = ROOT / block.what
        assert path.is_file(), f"{block}: there is no {block.what}"
        name = block.page.rsplit("/", 1)[-1]
        text = path.read_text()
        assert name in text or name.removesuffix(".md") in text, f"{block}: {block.what} does not name {name}"


def test_reasons_are_reasons():
    for block in (block for page in ALL for block in ALL[page] if block.how == "not run"):
        assert len(block.what.split()) >= 3, f"{block}: {block.what}"


BROKEN = [
    ("a program that fails", "```python\nraise ValueError\n```\n"),
    ("a program that prints something else", "```python\nprint(1 + 1)  # 3\n```\n"),
    ("a program that prints what the page does not show", "```python\nprint(2)\n```\n"),
    ("a program that is silent", "```python\nif False:\n    print(2)  # 2\n```\n"),
    ("a rule file with a mistake", '```toml\n[[rule]]\nmatch = "page:{id}"\nhould = "1s"\n```\n'),
    ("a command that fails", "```sh\nfalse\n```\n"),
    ("a command that prints something else", "```text\n$ echo one\ntwo\n```\n"),
    ("another reply", "<!-- run: transcript -->\n```text\nget a\nVALUE a 0 1\n1\nEND\n```\n"),
    ("another reply beside its request", "<!-- run: table -->\n```text\nget a       STORED\n```\n"),
]


@pytest.mark.parametrize("text", [text for _, text in BROKEN], ids=[name for name, _ in BROKEN])
def test_a_broken_block_fails(binary, text):
    (block,) = blocks("README.md", text)
    assert block.how == "run"
    section = Section(binary)
    try:
        with pytest.raises((AssertionError, ValueError)):
            section.run(block)
    finally:
        section.clean()


def test_a_block_without_a_mark_is_noticed():
    (block,) = blocks("README.md", "```text\nget a\n```\n")
    assert not block.how
    (block,) = blocks("README.md", "<!-- not run: it is a drawing -->\n```text\nget a\n```\n")
    assert (block.how, block.what) == ("not run", "it is a drawing")
    (block,) = blocks("README.md", "<!-- text blocks: run by: a.py -->\n\n```text\nget a\n```\n")
    assert (block.how, block.what) == ("run by", "a.py")


def test_the_cookbook_runs_every_language():
    """Each recipe has code in Python; together they have all languages."""
    text = (ROOT / "docs" / "cookbook.md").read_text()
    recipes = {}
    for block in ALL["docs/cookbook.md"]:
        assert block.how == "run" or block.language.startswith("rust"), block
        recipes.setdefault(block.section, []).append(block.language)
    assert len(recipes) >= 6
    for section, languages in recipes.items():
        assert "toml" in languages and "python" in languages, section
    assert {language for languages in recipes.values() for language in languages} >= set(PROGRAMS)
    assert re.search("pymemcache", text) and re.search("cattlegrid.client", text)


def test_commands_of_a_page_are_this_program(binary):
    """`cattlegrid` in a block is the server under test."""
    section = Section(binary)
    try:
        (block,) = blocks("README.md", "```sh\ncattlegrid -V\n```\n")
        out = section.shell(block, "cattlegrid -V")
    finally:
        section.clean()
    assert out == subprocess.run([binary, "-V"], capture_output=True, text=True, check=True).stdout


def test_guarantees_name_tests_that_exist():
    rows = re.findall(r"^\|.*\| `([\w/.]+)`(?: `(\w+)`)? \|$", (ROOT / "docs" / "guarantees.md").read_text(), re.M)
    assert len(rows) >= 30
    for path, name in rows:
        text = (ROOT / path).read_text()
        assert not name or re.search(rf"\b(?:def|fn) {name}\b", text), f"{path} has no {name}"


@pytest.mark.parametrize("size", [100, 1000, 8000])
def test_the_page_of_capacity_says_how_many_items_fit(binary, size):
    text = (ROOT / "docs" / "capacity.md").read_text()
    said = float(re.search(rf"^\| {size:,} \| ([\d,.]+) \|", text, re.M)[1].replace(",", ""))
    assert said * 0.97 < items(binary, size) < said * 1.03

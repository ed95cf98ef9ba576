"""The programs of a page of docs/: blocks whose first line is a comment that names a file."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"^```\w+\n(?:# |<!-- )([\w/.-]+)(?: -->)?\n(.*?)^```$", re.M | re.S)
RULES = re.compile(r"^```toml\n(.*?)^```$", re.M | re.S)


def write(page, folder, address):
    """Writes the files of a page, which ask the server at this address. Returns their names."""
    names = []
    for name, text in BLOCK.findall((DOCS / page).read_text()):
        if "." not in name:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("127.0.0.1:11211", address))
        names.append(name)
    assert names, page
    return names


def rules(page):
    """The rules of a page."""
    return "\n".join(RULES.findall((DOCS / page).read_text()))

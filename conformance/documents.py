"""The code blocks of the documentation, and how each is run.

A block is run by its language, unless a comment in the line before it says otherwise:

    <!-- run: file NAME -->            it is written to a file, which later blocks of its section use
    <!-- run: added -->                a part of a rule file, which is added to the one that the section has
    <!-- run: transcript -->           requests and replies, as they go over the wire
    <!-- run: table -->                requests, and the replies beside them; `A:` before a request names its connection
    <!-- run: demo -->                 lines that `cattlegrid demo` prints, without their numbers
    <!-- run: prometheus -->           a part of Prometheus' configuration
    <!-- run: with OLD as NEW -->      a text in it is replaced, so that it takes less time or fits this machine; several with commas
    <!-- run: numbers vary -->         what it prints is compared without its numbers
    <!-- run: prints anything -->      what it prints is not compared
    <!-- run by: FILE -->              a test of its own, which names the page
    <!-- not run: REASON -->           it cannot be run

`<!-- python blocks: run by: FILE -->` and `<!-- blocks: not run: REASON -->` apply to all blocks of the page, of one language or of all,
that have no comment of their own. Without a comment:

    toml                     a rule file: it is checked, and later blocks of its section have a server with it
    python js php ruby       a program; what it prints is what the comments behind its calls of `print` and the like say, `...` is any text
    sh                       commands, with `cattlegrid` in the path; a server that is started stays until the section ends
    text, beginning with $   commands, each with what it prints

What a block needs and readers do not is in a comment of several lines before it: `<!-- rules`, `<!-- python` or `<!-- file NAME`, then the
text, then `-->`. A section begins with a heading of the first or second level. Its blocks share a directory, a server, and what its Python
has defined. The ports of the page are replaced by free ones: 11211 is the server with the section's rule file, 6379 is a Redis.
"""

import contextlib
import dataclasses
import functools
import io
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

from harness import ROOT, Raw, Server, free_port, tool, wait_until

NODE = pathlib.Path(__file__).resolve().parent / "node"

PROGRAMS = ("python", "js", "php", "ruby")
DEFAULTS = (*PROGRAMS, "toml", "sh")
"""Languages that are run without a comment."""

PRINTED = {
    "python": re.compile(r"^\s*print\(.*\)\s+# (.*)$", re.M),
    "js": re.compile(r"^\s*console\.log\(.*\);\s+// (.*)$", re.M),
    "php": re.compile(r"^\s*(?:echo|print|var_dump)\b.*;\s+// (.*)$", re.M),
    "ruby": re.compile(r"^\s*(?:puts|p)\b.*?\s+# (.*)$", re.M),
}
"""A line that prints, and behind it what it prints."""

COMMENT = re.compile(r"^<!-- (run|run by|not run): (.+?) -->$")
SERVER = re.compile(r"(\S*/)?(cattlegrid|memcached) +(-(?!U )|\$)")
"""A command that starts a server."""
HIDDEN = re.compile(r"^<!-- (rules|python|file \S+)$")
OF_A_PAGE = re.compile(r"^<!-- (?:(\w+) )?blocks: (run|run by|not run): (.+?) -->$", re.M)
SECONDS = 60


@dataclasses.dataclass
class Block:
    """A fenced block. `line` is the number of its first line of code, `section` the heading that it is under."""

    page: str
    line: int
    language: str
    text: str
    section: str
    how: str = ""
    what: str = ""

    def __str__(self):
        return f"{self.page}:{self.line}"


def pages():
    """All pages with code for readers, from the root of the repository."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted(name for name in listed if (ROOT / name).exists())


def blocks(page, text=None):
    """The blocks of a page, each with what is done with it: `how` is "run", "run by", "not run", or empty if nothing says it."""
    lines = (ROOT / page).read_text().split("\n") if text is None else text.split("\n")
    text = "\n".join(lines)
    of_all = {language: (how, what) for language, how, what in OF_A_PAGE.findall(text)}
    found, at, section = [], 0, ""
    while at < len(lines):
        if re.match(r"#{1,2} ", lines[at]):
            section = f"{at + 1} {lines[at].lstrip('# ')}"
        hidden = HIDDEN.match(lines[at].strip())
        if hidden:
            end = lines.index("-->", at)
            language = {"rules": "toml", "python": "python"}.get(hidden[1], "text")
            what = hidden[1] if language == "text" else ""
            found.append(Block(page, at + 2, language, "\n".join(lines[at + 1 : end]) + "\n", section, "run", what))
            at = end
        fence = re.match(r"^( *)(`{3,})(.*)$", lines[at])
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if re.match(rf"^ *{fence[2]}\s*$", lines[n]))
            block = Block(page, at + 2, fence[3], textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n", section)
            own = COMMENT.match(lines[at - 1].strip()) if at else None
            is_console = block.language == "text" and block.text.startswith("$ ")
            chosen = own.groups() if own else of_all.get(block.language.split(",")[0]) or of_all.get("")
            if chosen and (own or not is_console):
                block.how, block.what = chosen
            elif block.language in DEFAULTS or is_console:
                block.how = "run"
            found.append(block)
            at = end
        at += 1
    return found


class Section:
    """What the blocks of a section share."""

    def __init__(self, binary):
        self.binary, self.rules = str(binary), ""
        self.server = self.scope = None
        self.children, self.ports = [], {}
        self.dir = tempfile.mkdtemp(prefix="conformance-")
        os.chmod(self.dir, 0o777)
        self.bin = tempfile.mkdtemp(prefix="conformance-")
        os.symlink(self.binary, os.path.join(self.bin, "cattlegrid"))
        with open(os.path.join(self.bin, "python3"), "w") as file:
            file.write(f'#!/bin/sh\nPYTHONPATH={ROOT}/python/src exec {sys.executable} "$@"\n')
        os.chmod(file.name, 0o755)
        self.write("rules.toml", "")
        for name in ("examples", "docs"):
            os.symlink(ROOT / name, os.path.join(self.dir, name))
        self.env = dict(os.environ, PATH=f"{self.bin}:{os.environ['PATH']}", PYTHONPATH=str(ROOT / "python" / "src"))

    def clean(self):
        self.stop()
        for directory in (self.dir, self.bin):
            shutil.rmtree(directory, ignore_errors=True)

    def stop(self):
        """Ends all that was started."""
        if self.server:
            self.server.clean()
        for child in self.children:
            child.kill()
            child.wait()
        self.server, self.children, self.ports = None, [], {}

    def port(self, number):
        """The port in the place of one of the page; what listens there is started."""
        if number not in self.ports:
            if number == 11211:
                self.server = Server(self.binary, "cattlegrid", ["--config", self.write("rules.toml", self.rules)])
                self.ports[number] = self.server.port
            else:
                self.ports[number] = free_port()
            if number == 6379:
                self.start([tool("redis-server"), "--port", str(self.ports[number]), "--save", "", "--bind", "127.0.0.1"], self.ports[number])
        return self.ports[number]

    def connect(self):
        """A connection to the server."""
        return Raw(socket.create_connection(("127.0.0.1", self.port(11211)), SECONDS))

    def start(self, command, port):
        self.children.append(subprocess.Popen(command, cwd=self.dir, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(f"{command} listens", lambda: listens(port))

    def write(self, name, text):
        path = os.path.join(self.dir, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def here(self, text):
        """The text with the ports of this machine."""
        return re.sub(r"\b(11211|6379)\b", lambda found: str(self.port(int(found[1]))), text)

    def there(self, text):
        """A text that was printed, with the ports of the page."""
        for number, port in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(number), text)
        return text.replace(self.dir, ".")

    def run(self, block):
        """Runs a block. A failure is an AssertionError that names it."""
        what, argument = (block.what.split(" ", 1) + [""])[:2]
        if what == "with":
            for pair in argument.split(", "):
                old, new = pair.split(" as ")
                assert old in block.text, f"{block}: no {old}"
                block = dataclasses.replace(block, text=block.text.replace(old, new), what="")
            what = ""
        if what == "added":
            block = dataclasses.replace(block, text=f"{self.rules}\n{block.text}")
        if what == "file":
            self.write(argument, block.text)
        elif what == "transcript":
            transcript(self, block)
        elif what == "table":
            table(self, block)
        elif what == "demo":
            demo(self, block)
        elif what == "prometheus":
            self.write("prometheus.yml", block.text)
            self.shell(block, f"{tool('promtool')} check config --syntax-only prometheus.yml")
        elif block.language == "toml":
            self.check(block)
        elif block.language == "sh":
            self.commands(block)
        elif block.language == "text":
            console(self, block)
        elif block.language in PROGRAMS:
            self.program(block)
        else:
            raise AssertionError(f"{block}: nothing runs {block.language}")

    def check(self, block):
        path = self.write("rules.toml", block.text)
        done = subprocess.run([self.binary, "check", path], cwd=self.dir, env=self.env, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{block}: {done.stderr}"
        self.stop()
        self.rules = block.text

    def program(self, block):
        text = self.here(block.text)
        if block.language == "python":
            printed = self.python(block, text)
        else:
            command = {
                "js": lambda: [tool("node"), "--no-deprecation", "-e", f"(async () => {{\n{text}\nprocess.exit(0);\n}})();"],
                "php": lambda: [tool("php"), "-r", re.sub(r"^<\?php\b", "", text)],
                "ruby": lambda: [tool("ruby"), "-W0", "-e", text],
            }[block.language]()
            cwd = NODE if block.language == "js" else self.dir
            done = subprocess.run(command, cwd=cwd, env=self.env, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
            printed = done.stdout
        if block.what != "prints anything":
            same(block, self.there(printed), "\n".join(PRINTED[block.language].findall(block.text)))

    def python(self, block, text):
        """Runs in this process; the names that it defines stay for the section."""
        if self.scope is None:
            self.scope = {"__name__": "page"}
        source = str(ROOT / "python" / "src")
        if source not in sys.path:
            sys.path.insert(0, source)
        sys.path.insert(0, self.dir)
        out, before = io.StringIO(), os.getcwd()
        os.chdir(self.dir)
        try:
            code = compile("\n" * (block.line - 1) + text, str(ROOT / block.page), "exec")
            with contextlib.redirect_stdout(out):
                exec(code, self.scope)
        finally:
            os.chdir(before)
            sys.path.remove(self.dir)
        return out.getvalue()

    def commands(self, block):
        """Runs what is before and between servers as one script each."""
        script = []
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
            if SERVER.match(line):
                self.shell(block, self.here("\n".join(script)))
                script = []
                self.serve(line)
            else:
                script.append(line)
        self.shell(block, self.here("\n".join(script)))

    def serve(self, line):
        """Starts a server that a page starts, on a free port."""
        line = re.sub(r"\s+#.*", "", line)
        if " -p " not in line:
            line += " -p 11211"
        numbers = {int(n) for n in re.findall(r"\b11\d{3}\b", line)}
        if numbers & self.ports.keys():
            self.stop()
        for number in sorted(numbers):
            self.ports[number] = free_port()
            line = re.sub(rf"\b{number}\b", str(self.ports[number]), line)
        if line.startswith("memcached") and os.geteuid() == 0 and " -u " not in line:
            line += " -u nobody"
        self.start(["sh", "-c", f"exec {line}"], self.ports[max(n for n in numbers if n < 11280)])

    def shell(self, block, line, how="-ec"):
        for number, port in self.ports.items():
            line = re.sub(rf"\b{number}\b", str(port), line)
        done = subprocess.run(["bash", how, line], cwd=self.dir, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{block}: {line}: {done.stdout}"
        return done.stdout


def listens(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def same(block, printed, expected):
    """Compares, with `...` for any text and blanks at ends of lines left out."""
    printed, expected = (re.sub(r" +$", "", text.strip("\n"), flags=re.M) for text in (printed, expected))
    if block.what == "numbers vary":
        printed, expected = (re.sub(r"[ \d][\d,.]*", "", text) for text in (printed, expected))
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    assert re.fullmatch(pattern, printed, re.S), f"{block} prints\n{printed}\ninstead of\n{expected}"


def console(section, block):
    """`$ COMMAND` and what it prints; its end may be told by the next command."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        if SERVER.match(command):
            section.serve(command.rstrip(" &"))
            continue
        same(block, section.there(section.shell(block, section.here(command), "-c")), expected)


def transcript(section, block):
    """Requests as they are sent, each followed by its reply. A line that stores has its data in the next ones."""
    lines = block.text.splitlines()
    with section.connect() as c:
        while lines:
            request = lines.pop(0)
            words = request.split(" ")
            data = b""
            if words[0] in ("set", "add", "replace", "append", "prepend", "cas", "ms"):
                size = int(words[2] if words[0] == "ms" else words[4])
                if lines[0] == "..." and size > 3:
                    lines[0] = "x" * size
                while len(data) < size or not data:
                    data += (b"\n" if data else b"") + lines.pop(0).encode()
                assert len(data) == size, f"{block}: {request}: {len(data)} bytes of data"
                data += b"\r\n"
            reply = c.ask(request.encode() + b"\r\n" + data).decode().replace("\r\n", "\n")
            taken = [lines.pop(0) for _ in range(min(len(lines), reply.count("\n")))]
            same(block, request + "\n" + reply.rstrip("\n"), "\n".join([request, *taken]))


def table(section, block):
    """Requests with their replies beside them; ` / ` is a line end in both. A reply `...` comes later, in a line of its own connection without a
    request. What is behind the reply, after more blanks, is a remark. A line below one that stores has its data, and the rest of its reply."""
    connections, waiting, blocks_of_data = {}, set(), 0
    for line in block.text.splitlines():
        name, rest = re.match(r"\s*(?:([A-Z]): )?(.*)$", line).groups()
        cells = re.split(r" {2,}", rest.strip())
        if name not in connections:
            connections[name] = section.connect()
        connection = connections[name]
        if line.startswith("  "):
            expected = cells[0]
            waiting.discard(name)
        else:
            request, expected = cells[:2]
            connection.send(request.replace(" / ", "\r\n").encode() + b"\r\n")
            if expected == "...":
                waiting.add(name)
                time.sleep(0.05)  # so that the clients wait in this order
                continue
            data = re.match(r"ms \S+ (\d+)(?! .* / )", request)
            if data and " / " not in request:
                blocks_of_data, expected_later = 1, expected
                continue
            if blocks_of_data:
                blocks_of_data, expected = 0, f"{expected_later} / {expected}"
        got = " / ".join(connection.line().decode() for _ in range(expected.count(" / ") + 1))
        if got.startswith("VA 0 "):
            connection.line()  # the value
        same(block, f"{line}\n{got}", f"{line}\n{expected}")
    for connection in connections.values():
        connection.close()
    assert not waiting, f"{block}: without a reply: {waiting}"


@functools.cache
def shown(binary):
    """What `cattlegrid demo` prints, once for all pages: each line without its numbers."""
    for _ in range(3):
        done = subprocess.run([binary, "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        if done.returncode == 0:
            return [worded(line) for line in done.stdout.splitlines()]
    raise AssertionError(f"cattlegrid demo: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def worded(line):
    return re.sub(r"-?\d[\d,.]*( (ms|us|s|%|KiB|MiB))?|[ -]", "", line)


def demo(section, block):
    lines = shown(section.binary)
    for line in block.text.splitlines():
        assert worded(line) in lines, f"{block}: cattlegrid demo does not print {line}"

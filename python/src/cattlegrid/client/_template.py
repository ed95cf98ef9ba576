"""Keys and tags from the arguments of a call: ``"page:{user.id}:{id}"``.

The text of a template is compiled into a function with the parameters of the decorated one, so that names, defaults and
errors of arguments are Python's own.

Two calls have the same key only if the arguments that the template names have the same text:

* In values everything is percent-encoded that is not visible ASCII, ``%`` and ``:``, and what stands between the values
  in the template. So a value never reaches into the next.
* ``None``, ``True``, ``False``, an empty text, bytes, lists, sets and dictionaries have marks that no text has.
* A key that is longer than a server takes has, in place of its longest values, their 128-bit hashes, which are marked
  as well.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import keyword
import re
import string
from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ._errors import UsageError
from ._keys import KEY_MAX, TAG_MAX, TAGS_MAX

_ACCESS = re.compile(r"\.([^.\[\]]+)|\[([^\[\]]+)\]")
_NAME = re.compile(r"[^.\[\]]*")
_HASHED = 34
"""Length of a value that is replaced by its hash: a mark and 32 digits."""
_VISIBLE = frozenset(chr(code) for code in range(0x21, 0x7F))
_TEXTUAL = frozenset({"datetime", "decimal", "fractions", "ipaddress", "pathlib", "uuid"})
"""Modules whose values have a text that names them."""

Make = Callable[..., Any]


class Field(NamedTuple):
    """A value of a template: its source in the function that is compiled, and its text in the template."""

    source: str
    shown: str


class Parts(NamedTuple):
    """A template: what stands before, between and behind its values, and the values."""

    literals: Tuple[str, ...]
    fields: Tuple[Field, ...]


class Call(NamedTuple):
    """A function's parameters, as source and defaults, and how errors of arguments name it."""

    names: Tuple[str, ...]
    source: str
    defaults: Mapping[str, Any]
    title: str = "key"


def call_of(function: Callable[..., Any]) -> Call:
    """The parameters of a function."""
    defaults = {}
    out: List[str] = []
    kind = None
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if kind is parameter.POSITIONAL_ONLY and parameter.kind is not kind:
            out.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and kind not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            out.append("*")
        kind = parameter.kind
        stars = "*" if kind is parameter.VAR_POSITIONAL else "**" if kind is parameter.VAR_KEYWORD else ""
        text = stars + parameter.name
        if parameter.default is not parameter.empty:
            defaults[parameter.name] = parameter.default
            text += f"=_cg_defaults[{parameter.name!r}]"
        out.append(text)
    if kind is inspect.Parameter.POSITIONAL_ONLY:
        out.append("/")
    title = getattr(function, "__qualname__", type(function).__qualname__)
    return Call(tuple(parameter.name for parameter in parameters), ", ".join(out), defaults, title)


def parts_of(template: str, call: Call, what: str) -> Parts:
    """The parts of a template. Raises :class:`UsageError`: it names no argument of the function, or cannot be read."""
    literals, fields = [""], []
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"{what} {template!r}: {error}") from None
    for literal, name, spec, conversion in parsed:
        literals[-1] += literal
        if name is not None:
            fields.append(_field(name, spec or "", conversion, call, f"{what} {template!r}"))
            literals.append("")
    return Parts(tuple(literals), tuple(fields))


def _field(name: str, spec: str, conversion: Optional[str], call: Call, where: str) -> Field:
    match = _NAME.match(name)
    first = match.group() if match else ""
    shown = "{" + name + "}"
    if first not in call.names:
        possible = ", ".join(call.names) or "none"
        raise UsageError(f"{where}: {shown} names no argument of the function, which has {possible}")
    source, at = first, len(first)
    while at < len(name):
        access = _ACCESS.match(name, at)
        if not access:
            raise UsageError(f"{where}: {shown} is not an argument with attributes and items")
        attribute, item = access.groups()
        if attribute is None:
            source += f"[{int(item)}]" if item.isdigit() else f"[{item!r}]"
        elif attribute.isidentifier() and not keyword.iskeyword(attribute):
            source += f".{attribute}"
        else:
            raise UsageError(f"{where}: {attribute!r} in {shown} is no name of an attribute")
        at = access.end()
    if "{" in spec:
        raise UsageError(f"{where}: {shown} has a format that depends on arguments")
    if conversion:
        source = {"s": f"str({source})", "r": f"repr({source})", "a": f"ascii({source})"}.get(conversion, "")
        if not source:
            raise UsageError(f"{where}: {shown} has the conversion !{conversion}; there are !s, !r and !a")
    if spec:
        source = f"format({source}, {spec!r})"
    return Field(source, shown)


def compile_key(template: str, call: Call, prefix_bytes: int) -> Make:
    """A function of the call's arguments that returns the key. ``prefix_bytes``: what the cache puts before it."""
    parts = parts_of(template, call, "the key")
    _check_key(template, parts, call, prefix_bytes)
    limit = KEY_MAX - prefix_bytes
    encode = encoder_of("".join(parts.literals[1:-1]))
    names = [f"_cg_{place}" for place in range(len(parts.fields))]
    lines = [f"    {name} = _cg_encode({field.source}, {field.shown!r})" for name, field in zip(names, parts.fields)]
    joined = "".join(
        _braced(literal) + (f"{{{names[place]}}}" if place < len(names) else "")
        for place, literal in enumerate(parts.literals)
    )
    lines.append(f"    key = f{joined!r}")
    values = "".join(f"{name}, " for name in names)
    lines.append(f"    return key if len(key) <= {limit} else _cg_short(({values}))")

    def short(values: Tuple[str, ...]) -> str:
        return _short(parts.literals, list(values), limit)

    return _compiled(call, lines, {"_cg_encode": encode, "_cg_short": short})


def compile_tags(templates: Iterable[str], call: Call) -> Optional[Make]:
    """A function of the call's arguments that returns the tags; None: there are none."""
    if isinstance(templates, str):
        raise UsageError(f"tags {templates!r}: give a list of them")
    all_parts = [parts_of(template, call, "the tag") for template in templates]
    if not all_parts:
        return None
    if len(all_parts) > TAGS_MAX:
        raise UsageError(f"{len(all_parts)} tags: an item has at most {TAGS_MAX}")
    tags = []
    for parts in all_parts:
        if not parts.fields and not parts.literals[0]:
            raise UsageError("a tag is empty")
        # Not as one f-string: before Python 3.12 those have no quotes of their own kind in them.
        pieces = [repr(parts.literals[0])]
        for field, literal in zip(parts.fields, parts.literals[1:]):
            pieces += [f"_cg_text({field.source}, {field.shown!r})", repr(literal)]
        tags.append(f"_cg_tag({' + '.join(pieces)})" if parts.fields else repr(tag_of(parts.literals[0])))
    return _compiled(call, [f"    return ({', '.join(tags)},)"], {"_cg_text": text_of, "_cg_tag": tag_of})


def _braced(literal: str) -> str:
    return literal.replace("{", "{{").replace("}", "}}")


def _compiled(call: Call, lines: List[str], helpers: Mapping[str, Any]) -> Make:
    scope = {**helpers, "_cg_defaults": call.defaults}
    for name in ("str", "repr", "ascii", "format", "len"):
        if name in call.names:
            raise UsageError(f"an argument of a cached function is not named {name!r}")
    exec("\n".join([f"def key({call.source}):", *lines]), scope)
    made: Make = scope["key"]
    # Python names a function by the one or the other, as its version is.
    made.__qualname__ = call.title
    made.__code__ = made.__code__.replace(co_name=call.title.rpartition(".")[2])
    return made


def _check_key(template: str, parts: Parts, call: Call, prefix_bytes: int) -> None:
    where = f"the key {template!r}"
    wrong = sorted(set("".join(parts.literals)) - _VISIBLE)
    if wrong:
        raise UsageError(f"{where} has {wrong[0]!r}: only visible ASCII is possible, besides the values")
    if not parts.fields and call.names not in ((), ("self",), ("cls",)):
        raise UsageError(f"{where} names no argument, so that all calls would have the same key")
    for left, literal in zip(parts.fields, parts.literals[1:-1]):
        if not any(character in _VISIBLE and not character.isalnum() and character != "%" for character in literal):
            raise UsageError(f"{where}: behind {left.shown} there must be a separator such as ':'")
    long = sum(map(len, parts.literals)) + _HASHED * len(parts.fields) + prefix_bytes
    if long > KEY_MAX:
        raise UsageError(f"{where} can have {long} bytes, at most {KEY_MAX} are possible")
    if not "".join(parts.literals) and not parts.fields:
        raise UsageError("the key is empty")


def _short(literals: Tuple[str, ...], values: List[str], limit: int) -> str:
    """The key with hashes in place of its longest values."""
    total = sum(map(len, literals)) + sum(map(len, values))
    while total > limit:
        place = max(range(len(values)), key=lambda place: (len(values[place]), -place))
        digest = hashlib.blake2b(values[place].encode(), digest_size=16).hexdigest()
        total += _HASHED - len(values[place])
        values[place] = f"%#{digest}"
    out = [literals[0]]
    for value, literal in zip(values, literals[1:]):
        out += [value, literal]
    return "".join(out)


def encoder_of(separators: str) -> Callable[[Any, str], str]:
    """A function from a value to its text in a key, in which none of these characters occurs unless it is a letter or
    digit."""
    refused = frozenset(character for character in separators if not character.isalnum()) | {"%", ":"}
    plain = re.compile("[" + re.escape("".join(sorted(_VISIBLE - refused))) + "]+").fullmatch

    def quote(data: bytes) -> str:
        return "".join(
            chr(byte) if chr(byte) in _VISIBLE and chr(byte) not in refused else f"%{byte:02X}" for byte in data
        )

    def encode(value: Any, shown: str) -> str:
        kind = type(value)
        if kind is int and value >= 0:
            return str(value)
        if kind is str and plain(value):
            return value  # type: ignore[no-any-return]
        mark, text = marked_text(value, shown)
        if not mark and not text:
            return "%_"
        return mark + quote(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))

    return encode


def marked_text(value: Any, shown: str) -> Tuple[str, Any]:
    """A mark for what is not text, and the text or bytes of a value. Raises :class:`UsageError`: it has no text that
    names it."""
    if value is None or value is True or value is False:
        return f"%{value}", ""
    if isinstance(value, enum.Enum):
        return marked_text(value.value, shown)
    if isinstance(value, str):
        return "", str.__str__(value)
    if isinstance(value, int):
        return "", int.__repr__(value)
    if isinstance(value, float):
        return "", float.__repr__(value)
    if isinstance(value, (bytes, bytearray)):
        return "%b", bytes(value)
    if isinstance(value, (list, tuple)):
        return "%l", ",".join(_nested(part, shown) for part in value)
    if isinstance(value, (set, frozenset)):
        return "%s", ",".join(sorted(_nested(part, shown) for part in value))
    if isinstance(value, Mapping):
        pairs = (f"{_nested(key, shown)}={_nested(part, shown)}" for key, part in value.items())
        return "%d", ",".join(sorted(pairs))
    if any(base.__module__.partition(".")[0] in _TEXTUAL for base in type(value).__mro__):
        return "", str(value)
    raise UsageError(
        f"{shown} is a {type(value).__name__}: name an attribute of it in the template, or write {shown[:-1]}!s}}"
    )


_nested_quote = encoder_of(",=[]")


def _nested(value: Any, shown: str) -> str:
    return f"[{_nested_quote(value, shown)}]"


def text_of(value: Any, shown: str) -> str:
    """The text of a value in a tag: that of an f-string, so that programs can name the tag."""
    if isinstance(value, enum.Enum):
        return text_of(value.value, shown)
    mark, text = marked_text(value, shown)
    if isinstance(text, bytes):
        return text.decode("utf-8", "backslashreplace")
    return str(value) if mark in ("%None", "%True", "%False") else str(text)


def tag_of(text: str) -> str:
    """A tag: blanks and control characters are percent-encoded, and what is too long has a hash at its end."""
    if any(character <= " " or character == "\x7f" for character in text):
        text = re.sub(r"[\x00-\x20\x7f]", lambda match: f"%{ord(match.group()):02X}", text)
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > TAG_MAX:
        head = data[: TAG_MAX - _HASHED].decode("utf-8", "ignore")
        return f"{head}%#{hashlib.blake2b(data, digest_size=16).hexdigest()}"
    return data.decode()

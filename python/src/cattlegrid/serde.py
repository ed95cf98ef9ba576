"""Tags in values, for clients whose commands cannot name them: a serializer that puts the line of tags before the value.

::

    from cattlegrid.serde import Tagged, TagSerde
    from pymemcache import serde
    from pymemcache.client.base import Client

    client = Client("127.0.0.1:11211", serde=TagSerde(serde.compressed_serde))
    client.set("page:42", Tagged(page, ["user:7", "product:9"]))

    # Or by a function, so that the calls of `set` need no change:
    client = Client("127.0.0.1:11211", serde=TagSerde(serde.pickle_serde, lambda key, value: getattr(value, "tags", ())))

The rule of the keys needs ``tags_in_value = true`` or ``"required"``. The server stores the value without the line; where no rule says
so, and on a plain memcached, the line is stored and taken off again when the value is read.

``append`` and ``prepend`` of pymemcache call the serializer too, and the server does not look at their data: do not use them with
tags.
"""

__all__ = ["LINE", "LINE_MAX", "TAGS_MAX", "TAG_BYTES_MAX", "TagSerde", "Tagged", "line_of"]

LINE = b"@tags:"
"""What a line of tags begins with."""

LINE_MAX = 2048
"""Most bytes of it, its end included."""

TAGS_MAX = 8
"""Most tags of a value, those of its rule included."""

TAG_BYTES_MAX = 200
"""Most bytes of a tag."""


class Tagged:
    """A value and its tags."""

    __slots__ = ("tags", "value")

    def __init__(self, value, tags):
        self.value = value
        self.tags = tags

    def __repr__(self):
        return f"Tagged({self.value!r}, {self.tags!r})"


class TagSerde:
    """Wraps another serializer of pymemcache; ``None``: bytes and text are stored as they are, and read as bytes.

    ``tags(key, value)`` returns the tags of a value that is not ``Tagged``, or none.
    """

    def __init__(self, serde=None, tags=None):
        self._serde = serde
        self._tags = tags

    def serialize(self, key, value):
        """The value with its line of tags, and the flags of the other serializer. ``ValueError``: the tags are not valid."""
        tags = ()
        if isinstance(value, Tagged):
            value, tags = value.value, value.tags
        elif self._tags is not None:
            tags = self._tags(key, value) or ()
        line = line_of(tags)
        data, flags = (value, 0) if self._serde is None else self._serde.serialize(key, value)
        if isinstance(data, str):
            data = data.encode()
        if data[: len(LINE)] == LINE:
            raise ValueError(f"a value that begins with {LINE.decode()} would be taken for a line of tags")
        return line + data if line else data, flags

    def deserialize(self, key, value, flags):
        """The value that was serialized."""
        if value[: len(LINE)] == LINE:
            # No rule has taken it off.
            value = value[value.index(b"\n") + 1 :]
        return value if self._serde is None else self._serde.deserialize(key, value, flags)


def line_of(tags):
    """The line that names these tags; empty without tags. ``ValueError``: they are not valid."""
    if isinstance(tags, (str, bytes)):
        raise ValueError(f"{tags!r} is one tag: give a list of them")
    names = [tag.encode() if isinstance(tag, str) else bytes(tag) for tag in tags]
    if not names:
        return b""
    if len(set(names)) > TAGS_MAX:
        raise ValueError(f"{len(set(names))} tags: a value has at most {TAGS_MAX}")
    for name in names:
        if not 1 <= len(name) <= TAG_BYTES_MAX:
            raise ValueError(f"the tag {name!r} has {len(name)} bytes: 1 to {TAG_BYTES_MAX} are allowed")
        if any(byte <= 0x20 or byte == 0x7F for byte in name):
            raise ValueError(f"the tag {name!r} has a blank or a control character")
    escaped = (name.replace(b"%", b"%25").replace(b",", b"%2C") for name in dict.fromkeys(names))
    line = LINE + b",".join(escaped) + b"\n"
    if len(line) > LINE_MAX:
        raise ValueError(f"the tags make a line of {len(line)} bytes: at most {LINE_MAX} are allowed")
    return line

"""Frames of the worker protocol, version 1: bytes to values and back. See docs/worker-protocol.md.

Header, little endian: u32 length of the body, u8 kind, u8 flags, u16 zero, u64 id.
"""

import struct

VERSION = 1
MAX_FRAME = 64 << 20
START_MAX = 64 << 10
"""Longest body that may be sent before INIT has told the limit."""
FLAG_MORE = 1
FLAG_RETRYABLE = 2
HAS_PAGE = 1
HAS_CLAIMS = 2
TAKES_BATCHES = 4

INIT, JOB, CANCEL, RETIRE, PING = 1, 2, 3, 4, 5
HELLO, READY, RESULT, ERROR, EVENT, PROGRESS, LOG, PONG, LEAVE, SKIPPED = 16, 17, 18, 19, 20, 21, 22, 23, 24, 25

HEADER = struct.Struct("<IBBHQ")
HEADER_LEN = 16
ERROR_LENGTHS = 16
"""Most bytes that the count and the three lengths of an ERROR take."""


def varint(value):
    """The bytes of a varint: 7 bits each, low bits first, high bit set on all but the last."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def take_varint(data, at):
    """The varint at ``at`` and the position behind it. ``ValueError`` if it is cut off or 2**32 and more."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("malformed varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 32:
                raise ValueError("malformed varint")
            return value, at
        shift += 7


def encode_list(parts):
    """The bytes of a list: count, then length and bytes of each part."""
    out = [varint(len(parts))]
    for part in parts:
        out.append(varint(len(part)))
        out.append(part)
    return b"".join(out)


def decode_list(data, at=0, end=None):
    """The parts of the list that is exactly ``data[at:end]``. ``ValueError`` if it is malformed."""
    if end is None:
        end = len(data)
    count, at = take_varint(data, at)
    parts = []
    for _ in range(count):
        # The usual part is short.
        if at < end and data[at] < 0x80:
            length = data[at]
            at += 1
        else:
            length, at = take_varint(data, at)
        if at + length > end:
            raise ValueError("a list is cut off")
        parts.append(slice_of(data, at, at + length))
        at += length
    if at != end:
        raise ValueError("bytes behind a list")
    return parts


def slice_of(data, start, end):
    """``data[start:end]`` as ``bytes``, copied once."""
    return data[start:end] if type(data) is bytes else bytes(memoryview(data)[start:end])


def list_frame(kind, id, parts, flags=0):
    """The bytes of a frame whose body is a list; its parts are copied once."""
    out = [b"", varint(len(parts))]
    size = len(out[1])
    for part in parts:
        length = len(part)
        prefix = _SHORT[length] if length < 0x80 else varint(length)
        out += (prefix, part)
        size += len(prefix) + length
    out[0] = HEADER.pack(size, kind, flags, 0, id)
    return b"".join(out)


def frame(kind, id=0, body=b"", flags=0):
    """The bytes of a frame."""
    return HEADER.pack(len(body), kind, flags, 0, id) + body


def hello(pid, concurrency, flags, sdk):
    """HELLO: u16 version, u16 flags (HAS_*), u32 pid, u32 concurrency, u32 max frame, list [sdk]."""
    body = struct.pack("<HHIII", VERSION, flags, pid, concurrency, MAX_FRAME) + encode_list([sdk.encode()])
    return frame(HELLO, 0, body)


def parse_init(body):
    """INIT: u32 max frame, u32 generation, u64 worker, list [config]; returned in this order."""
    max_frame, generation, worker = struct.unpack_from("<IIQ", body)
    (config,) = decode_list(body, 16)
    return max_frame, generation, worker, config


def error(id, code, message, detail="", retryable=False, max_frame=START_MAX):
    """ERROR: list [code, message, detail]; retryable is a flag.

    Texts that do not fit into ``max_frame`` are cut: of the detail the end is kept, where a traceback says most; if that
    is not enough, of message and code the beginning.
    """
    code, message, detail = (str(text).encode("utf-8", "replace") for text in (code, message, detail))
    room = max_frame - ERROR_LENGTHS
    code = head(code, room)
    message = head(message, room - len(code))
    detail = tail(detail, room - len(code) - len(message))
    return frame(ERROR, id, encode_list([code, message, detail]), FLAG_RETRYABLE if retryable else 0)


def head(text, size):
    """The first ``size`` bytes of UTF-8, no character cut."""
    return text if len(text) <= size else text[: max(size, 0)].decode("utf-8", "ignore").encode()


def tail(text, size):
    """The last ``size`` bytes of UTF-8, no character cut."""
    return text if len(text) <= size else text[len(text) - max(size, 0) :].decode("utf-8", "ignore").encode()


def parts_of(result):
    """The return value of a job, as a list of bytes-like parts."""
    if result is None:
        return []
    if isinstance(result, (bytes, bytearray, memoryview)):
        return [bytes(result)]
    if isinstance(result, str):
        return [result.encode()]
    if isinstance(result, (list, tuple)):
        try:
            return [part if type(part) is bytes else _bytes(part) for part in result]
        except TypeError as error:
            raise TypeError(_why(result)) from error
    raise TypeError(f"a job returns None, bytes, str or a list of these, not {type(result).__name__}")


def _bytes(part):
    return part.encode() if isinstance(part, str) else bytes(memoryview(part))


def _why(parts):
    """The error in a list of parts, as a text."""
    for at, part in enumerate(parts):
        try:
            if not isinstance(part, str):
                memoryview(part)
        except TypeError:
            return f"part {at} (counted from 0) of {len(parts)} is {type(part).__name__}; a part is bytes or str"
    return "a part is bytes or str"


_SHORT = [varint(length) for length in range(0x80)]
"""Varints of one byte."""

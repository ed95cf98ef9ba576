"""The loop of a synchronous worker: receive a batch, do its jobs, write their replies."""

import _thread
import atexit
import os
import struct
import sys
import time
import traceback
import types

from . import _frames as frames
from ._errors import told
from ._state import STATE, JobError

_JOB_HEAD = struct.Struct("<I4xQII")
"""Length, id, deadline and attempt; kind and flags are skipped."""
_ONE_PART = struct.Struct("<I4sQBB")
_RESULT = bytes((frames.RESULT, 0, 0, 0))
NO_CANCEL = b"\0\0\0\0\x03\0\0\0"


def serve(link, function):
    """Serve jobs until the parent retires this worker or goes away; then the process ends."""
    # Local names: looking up a name in a module takes as long as a step of the loop.
    unpack, pack, a_job, a_result = _JOB_HEAD.unpack_from, _ONE_PART.pack, frames.JOB, _RESULT
    clock, hold = time.monotonic_ns, link.hold
    out, page, state, threads = link.out, link.page, STATE, _thread._count
    release, acquire = link.fence.release, link.fence.acquire
    claimed = 0
    state.main = _thread.get_ident()
    adopt_threads(0)
    while True:
        data, pos = link.data, link.pos
        size = len(data)
        # Cheap test first. It may be true for bytes inside arguments, which only costs a walk over the frames. A
        # `bytearray` is one long frame, with nothing after it.
        short = type(data) is bytes
        cancels = short and NO_CANCEL in data
        while size - pos >= 16:
            if size - pos < 24 or data[pos + 4] != a_job:
                length, kind, _, _, id = frames.HEADER.unpack_from(data, pos)
                if pos + 16 + length > size:
                    break
                pos += 16 + length
                control(link, kind, id)
                continue
            length, id, deadline, attempt = unpack(data, pos)
            end = pos + 16 + length
            if end > size:
                break
            if out:
                since = link.since
                if since == 0 or clock() - since > hold:
                    link.before_job()
            claimed += 1
            if page is not None:
                # `Link.claim` of one job, written out to save a call.
                page[1] = claimed
                release()
                acquire()
                if page[2] >= claimed:
                    pos = link.pos = end
                    # At once: the next job may take long, and until then the pool counts this job as ours.
                    link.send(frames.frame(frames.SKIPPED, id))
                    continue
            # The usual job has one short argument.
            if short and length >= 10 and data[pos + 24] == 1 and data[pos + 25] < 0x80:
                args = (data[pos + 26 : end],)
            else:
                args = frames.decode_list(data, pos + 24, end)
            pos = end
            link.pos = pos
            state.id, state.deadline, state.attempt = id, deadline, attempt
            if cancels and link.has_cancel(id):
                out.append(link.error(id, "cancelled", "cancelled before it began"))
                state.id = 0
                continue
            try:
                result = function(*args)
                if type(result) is bytes and (count := len(result)) < 0x80:
                    out.append(pack(count + 2, a_result, id, 1, count) + result)
                else:
                    out.append(reply(link, id, result))
            except SystemExit:
                raise
            except BaseException as error:
                # Only SystemExit asks for the end of the process.
                out.append(failure(link, id, error))
            if threads() > link.own_threads:
                adopt_threads(id)
            state.id = 0
        link.pos = pos
        if out:
            link.flush()
        link.fill()


def adopt_threads(id):
    """Note that threads without an owner were started in job ``id``, which ends now; 0: before the first job."""
    if _thread._count() == 0:
        return
    if STATE.owners is None:
        import weakref

        STATE.owners = weakref.WeakKeyDictionary()
    threading = sys.modules.get("threading")
    for thread in threading.enumerate() if threading else ():
        STATE.owners.setdefault(thread, id)


def control(link, kind, id):
    if kind == frames.RETIRE:
        leave(link)
    elif kind == frames.PING:
        link.out.append(frames.frame(frames.PONG, id))
    elif kind != frames.CANCEL:
        raise ValueError(f"unexpected frame kind {kind}")


def leave(link):
    """End the process on request: send the replies, run exit functions, flush the output."""
    link.flush()
    run_exit_functions()
    os._exit(0)


def run_exit_functions():
    """Run the functions of ``atexit``, as at the end of any forked process; then flush the output.

    Finalizers that the template had registered (``weakref.finalize``, temporary directories) are the template's.
    """
    try:
        for finalizer in STATE.inherited:
            finalizer.atexit = False
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


def reply(link, id, result):
    """The frame of a reply; for a generator, the last frame."""
    if isinstance(result, types.GeneratorType):
        for part in result:
            link.send(part_of_reply(link, id, part))
            with link.reading:
                cancelled = link.is_cancelled(id)
            if cancelled:
                # The caller has gone: the rest is not needed.
                result.close()
                raise JobError("cancelled", "cancelled in the middle of its reply")
        result = None
    whole = frames.list_frame(frames.RESULT, id, frames.parts_of(result))
    return checked(link, whole, "the reply", "; yield it in parts")


def part_of_reply(link, id, part):
    """The frame of a part of a long reply. ``JobError`` if it is longer than the pool accepts."""
    whole = frames.list_frame(frames.RESULT, id, frames.parts_of(part), frames.FLAG_MORE)
    return checked(link, whole, "a part of the reply")


def checked(link, whole, what, advice=""):
    """``whole``, a frame. ``JobError`` if it is longer than the pool accepts."""
    length = len(whole) - frames.HEADER_LEN
    if length > link.max_frame:
        raise JobError("too_large", f"{what} has {length} bytes, the limit is {link.max_frame}{advice}")
    return whole


def failure(link, id, error):
    """The frame for an exception."""
    return link.error(id, *told(error))

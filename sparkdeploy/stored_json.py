"""JSON files that somebody else may have written, read within limits."""

import errno
import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

MAX_BYTES = 16 << 20
"""A record of every suite is a tenth of it; one letter beyond U+FFFF makes a text four times it."""
MAX_VALUES = 1_000_000
"""Lists and objects of JSON take thirty times their text in memory, so their number counts too."""
MAX_NUMBER = 2**63
"""Far beyond every second, token and byte that is counted: sums and squares stay numbers."""
MIN_NUMBER = 1e-60
"""So that what is divided by it is one."""
MAX_DIGITS = 20
MAX_DEPTH = 100
"""Each release of Python reads to another depth, and writes what it has read to another one."""
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON
    """Return what a file holds, as `read_bytes` reads it.

    Raises OSError as that does, and ValueError for what is no JSON, holds more than MAX_VALUES
    values, is nested deeper than MAX_DEPTH, holds a number beyond MAX_NUMBER, or half a surrogate
    pair.
    """
    text = read_bytes(path, MAX_BYTES).decode("utf-8")
    if text.count(",") + text.count("[") + text.count("{") > MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES} values")
    try:
        content = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check_depth(content)
    check_pairs(text, content)
    return content


def _check_depth(content: object) -> None:
    boxes: list[Any] = [[content]]
    for _ in range(MAX_DEPTH + 1):
        within = (it for box in boxes for it in (box.values() if isinstance(box, dict) else box))
        boxes = [it for it in within if isinstance(it, (dict, list))]
        if not boxes:
            return
    raise ValueError("it is nested too deep")


def check_pairs(text: str, content: object) -> None:
    """Raise ValueError when JSON holds half a surrogate pair; `content` is what it was read as."""
    if _HALF_A_PAIR.search(text):
        # Whole pairs are letters like any other; a half is none and cannot be written again.
        json.dumps(content, ensure_ascii=False).encode()


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS or abs(number := int(digits)) > MAX_NUMBER:
        raise ValueError(f"{digits[:MAX_DIGITS]} is too large a number")
    return number


def _finite(digits: str) -> float:
    size = abs(number := float(digits))
    if not (size == 0 or MIN_NUMBER <= size <= MAX_NUMBER):
        raise ValueError(f"{digits[:MAX_DIGITS]} is no number that was measured")
    return number


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """Return what a regular file holds, as `open_regular` opens it.

    Raises OSError, whose `strerror` says what it is, for the rest and for a longer file.
    """
    return _read_within(open_regular(path), limit_bytes)


def read_in_place(path: Path, limit_bytes: int) -> tuple[bytes, Path]:
    """Return what `read_bytes` does, and where that very file lies, links followed.

    A judgement by the place counts for these bytes only so: whoever owns a folder on the way may
    lead the path elsewhere at any time. Raises OSError where that was done meanwhile, too.
    """
    file = open_regular(path)
    opened, place = os.fstat(file.fileno()), Path(os.path.realpath(path))
    content = _read_within(file, limit_bytes)
    if not os.path.samestat(opened, os.lstat(place)):
        raise OSError(errno.ESTALE, "it was exchanged while it was read")
    return content, place


def _read_within(file: BufferedReader, limit_bytes: int) -> bytes:
    with file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 10} KiB")
    return content


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe is not waited for and a device not read.

    Raises OSError, whose `strerror` says what it is, for the rest. Links are followed: a person may
    name any file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error)) from error
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket
            raise
        raise _no_file() from error
    return _regular(descriptor)


def _regular(descriptor: int) -> BufferedReader:
    # Before Python opens it, which has words of its own for a folder.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file()
    return os.fdopen(descriptor, "rb")


def read_unlinked(path: Path, limit_bytes: int) -> bytes:
    """Return what a regular file holds that no link leads to, at any part of its absolute path.

    A path whose links were followed leads to the file that was judged, whatever the owner of a
    folder on the way puts there meanwhile. Raises OSError as `read_bytes` does.
    """
    folder = os.open(path.anchor, _WAY)
    try:
        for part in path.parts[1:-1]:
            below = os.open(part, _WAY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    return _read_within(_regular(descriptor), limit_bytes)


def _no_file() -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file")

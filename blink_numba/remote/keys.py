"""The key that an engine and its front ends share: from an option, the environment, or a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rdma.transport import TransportError
from rdma.verbs.wire import KEY_VARIABLE, check_key

_MOST_BYTES = 4096


def shared_key(key: str | None = None, key_file: str | Path | None = None) -> bytes:
    """The shared key.

    Parameters
    ----------
    key : str, optional
        The key itself; ``BLINK_NUMBA_RDMA_KEY`` by default. On a command line anybody on the
        host can read it.
    key_file : str or Path, optional
        A file with the key that only its owner may read; white space around it does not count.

    Raises
    ------
    TransportError
        There is none, it is too short, both were given, or the file is not private.
    """
    if key_file is None:
        return check_key(key or os.environ.get(KEY_VARIABLE))
    if key:
        raise TransportError(f"give the shared key or a file with it, not both (is {KEY_VARIABLE} set too?)")
    path = Path(key_file).expanduser()
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise TransportError(f"the key file {path} is no regular file")
        if state.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise TransportError(f"the key file {path} is open to others: `chmod 600 {path}`")
        with path.open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TransportError(f"the key file {path} cannot be read: {error.strerror}") from None
    if len(found) > _MOST_BYTES:
        raise TransportError(f"the key file {path} holds more than {_MOST_BYTES} bytes: is it the right one?")
    return check_key(found.strip())

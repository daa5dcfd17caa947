"""No worker outlives its parent: a pipe that closes when the parent dies, however it dies.

Imported by the worker before anything heavy, so only the standard library is used here. The pipe
works three times over, since each way alone has a hole:

- the kernel itself kills the whole group when the last write end closes (`arm`, parent side): it
  needs nothing from the worker, not even the interpreter's lock;
- a thread of the worker reads until the pipe closes (`watch_parent`): it also reaches children
  that left the group, and a pipe that closed before it was armed;
- the parent-death signal ends a worker that somehow lost its pipe.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import threading
from collections.abc import Mapping

from tuner import processes

PIPE_VARIABLE = "TUNER_PARENT_PIPE"
"""Number of the descriptor that the worker reads from."""
_F_SETSIG = 10
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def arm(read_end: int, group: int) -> bool:
    """Let the kernel send SIGKILL to the process group `group` once the pipe's write end closes.

    Returns:
        False where this kernel cannot (sandboxes that imitate one); the other two ways are left.
    """
    try:
        fcntl.fcntl(read_end, fcntl.F_SETOWN, -group)
        fcntl.fcntl(read_end, _F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(read_end, fcntl.F_GETFL)
        fcntl.fcntl(read_end, fcntl.F_SETFL, flags | os.O_ASYNC)
    except OSError:
        return False
    return True


def become_subreaper() -> None:
    """Make orphans among our descendants our own children, so that they can be found and reaped."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def watch_parent(environment: Mapping[str, str] | None = None) -> bool:
    """Die with the parent from now on. Called by the worker, first of all.

    Returns:
        False where no parent gave a pipe: the worker was started by hand.
    """
    number = (os.environ if environment is None else environment).get(PIPE_VARIABLE)
    if number is None:
        return False
    read_end = int(number)
    os.set_inheritable(read_end, False)
    threading.Thread(target=_sleep_until_closed, args=(read_end,), name="parent-pipe", daemon=True).start()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return True


def _sleep_until_closed(read_end: int) -> None:
    while os.read(read_end, 1):
        pass
    for pid in processes.descendants(os.getpid()):
        _kill(pid)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

"""Watches its parent as the real worker does; of the three ways only the one in the argument is left on."""

import ctypes
import fcntl
import os
import subprocess
import sys
import time

from say import HERE, phase

from tuner.parent_pipe import PIPE_VARIABLE, watch_parent

read_end, way = int(os.environ[PIPE_VARIABLE]), sys.argv[2]
if way != "kernel":
    fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) & ~os.O_ASYNC)
if way == "signal":
    never_closed = os.pipe()
    os.dup2(never_closed[0], read_end)
if way != "kernel":
    assert watch_parent()
if way == "thread":
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
children = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
(HERE / "children").write_text(" ".join(str(child.pid) for child in children))
phase("load")
time.sleep(600)

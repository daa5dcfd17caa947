"""Enters three phases and writes a result."""

import os
import pathlib
import time

from say import HERE, phase, result

pathlib.Path(HERE / "environ").write_bytes(pathlib.Path("/proc/self/environ").read_bytes())
for name in ("load", "first_step", "steady"):
    phase(name)
    time.sleep(0.1)
print("fd", os.listdir("/proc/self/fd"), "stdin", os.readlink("/proc/self/fd/0"), flush=True)
result()

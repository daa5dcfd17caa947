"""A worker that takes memory of the card, starts a child in a session of its own that takes as much, and hangs.

By the driver itself (libcuda), so that it starts at once: ``hold.py TRIAL_DIR BYTES``. Without a card
(``BYTES`` of 0) it only starts the child.
"""

import ctypes
import subprocess
import sys
import time
from pathlib import Path


def take(size):
    """Allocate `size` bytes of the first visible card, and keep them."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(driver, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: CUDA error {status}")

    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))


def main():
    """As a worker (two arguments), or as its child (three)."""
    here, size = Path(sys.argv[1]), int(sys.argv[2])
    if size:
        take(size)
    if len(sys.argv) > 3:
        (here / "child-holds").touch()
        time.sleep(600)
    child = subprocess.Popen([sys.executable, __file__, str(here), str(size), "child"], start_new_session=True)
    (here / "child").write_text(str(child.pid))
    while not (here / "child-holds").exists():
        if child.poll() is not None:
            raise SystemExit("the child died")
        time.sleep(0.05)
    sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
    from say import phase

    phase("settle")
    time.sleep(600)


main()

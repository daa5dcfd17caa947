"""Its children, which stand for compilers, were forked from one that holds 150 MiB: all share it."""

import os
import time

from say import phase

phase("first_step")
if os.fork() == 0:
    shared = b"x" * (150 * 2**20)
    for _ in range(3):
        if os.fork() == 0:
            break
    time.sleep(600)
time.sleep(1.5)

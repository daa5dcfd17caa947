"""Takes memory until somebody stops it, in its first step."""

import time

from say import phase

phase("first_step")
hoard = []
for _ in range(100):
    hoard.append(b"x" * 2**23)
    time.sleep(0.02)

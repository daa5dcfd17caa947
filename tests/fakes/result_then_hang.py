"""Writes its result and never exits."""

import time

from say import phase, result

phase("steady")
result()
time.sleep(600)

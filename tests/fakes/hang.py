"""Enters its first step and never leaves it."""

import time

from say import phase

phase("first_step")
time.sleep(600)

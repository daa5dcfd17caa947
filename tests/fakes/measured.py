"""Says that all is measured, then takes much more memory and time than it did before."""

import sys
import time

from say import event, phase, result

phase("steady")
time.sleep(0.1)
event("measured", "steady")
hoard = b"x" * 2**28
time.sleep(float(sys.argv[2]))
result()

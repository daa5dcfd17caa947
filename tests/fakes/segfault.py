"""Dies of SIGSEGV in its first step; a shell would say 139."""

import os
import signal

from say import phase

phase("first_step")
os.kill(os.getpid(), signal.SIGSEGV)

"""Leaves a child asleep in its own session, with an empty environment and a parent that is dead."""

import subprocess
import time

from say import HERE, phase

phase("settle")
child = subprocess.Popen(["setsid", "sleep", "600"], env={})
(HERE / "children").write_text(str(child.pid))
time.sleep(0.4)

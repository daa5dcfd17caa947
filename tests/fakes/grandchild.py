"""Leaves two children asleep, one in its own session, and dies without a result (or writes one: `ok`)."""

import subprocess
import sys

from say import HERE, phase, result

phase("settle")
sleepers = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
(HERE / "children").write_text(" ".join(str(child.pid) for child in sleepers))
if sys.argv[2] == "ok":
    result()
elif sys.argv[2] == "hang":
    sleepers[0].wait()
else:
    raise MemoryError

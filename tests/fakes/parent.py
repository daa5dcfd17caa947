"""A search that starts one worker and waits: parent.py REQUEST TRIAL_DIR WORKER [ARGUMENT]."""

import os
import pathlib
import sys

from tuner.launcher import Launcher
from tuner.protocol import TrialRequest
from tuner.trial_dir import TrialDir

request = TrialRequest.model_validate_json(pathlib.Path(sys.argv[1]).read_bytes())
path = sys.argv[2]
worker = Launcher(os.environ).start(
    request, TrialDir(pathlib.Path(path)), [sys.executable, sys.argv[3], path, *sys.argv[4:]]
)
print(worker.pid, flush=True)
worker.wait()

"""Starts one worker process for one trial, so that it can be ended whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tuner import parent_pipe, processes, strays
from tuner.inherited import handed_on
from tuner.kinds import Phase
from tuner.protocol import TrialRequest
from tuner.strays import Family, Stray, find_strays, kill_strays
from tuner.trial_dir import TrialDir
from tuner.watcher import Memory, Meter, Worker

__all__ = ["Launcher", "Meter", "Stray", "Worker", "default_deadlines", "find_strays", "kill_strays"]

GRACE_S = 10.0
"""What a worker may take to exit once its result is written."""


def default_deadlines(time_budget_s: float) -> dict[Phase, float]:
    """Return the seconds that each phase may take in a search of `time_budget_s`.

    Every phase with optimizer steps in it grows with the time budget: a step alone may take minutes.
    """
    first_step, steps = max(180.0, time_budget_s / 4), max(300.0, time_budget_s / 4)
    return {
        Phase.START: 180.0,
        Phase.LOAD: 300.0,
        Phase.WARMUP_BATCH: first_step,
        Phase.FIRST_STEP: first_step,
        Phase.SETTLE: steps,
        Phase.STEADY: steps,
        # Another shape, and a forward without gradients, are compiled anew there.
        Phase.LONGEST_BATCH: first_step + steps,
    }


class Launcher:
    """Starts workers. `start` must be called from a thread that lives as long as they do.

    The parent-death signal of a worker is sent when the thread that started it ends.
    """

    def __init__(
        self, base_environment: Mapping[str, str], *, host_total_bytes: int | None = None, grace_s: float = GRACE_S
    ) -> None:
        """`base_environment`: what a worker inherits. `host_total_bytes`: on a CPU, what worker and
        compilers together may take."""
        self._base_environment = dict(base_environment)
        self._host_total_bytes = host_total_bytes
        self._grace_s = grace_s
        parent_pipe.become_subreaper()

    def start(
        self,
        request: TrialRequest,
        trial_dir: TrialDir,
        command: Sequence[str] | None = None,
        meter: Meter | None = None,
    ) -> Worker:
        """Write the request and start the worker.

        Args:
            request: a phase without a deadline gets that of `default_deadlines`.
            command: what to run; the worker unless said.
            meter: the card's; needed for ``cuda``.

        Raises:
            OSError: the folder cannot be written, or the command not started.
        """
        on_card = request.device_type == "cuda"
        if on_card != (meter is not None) or on_card != (request.device_uuid is not None):
            raise ValueError("a trial on a card needs the card's UUID and meter, one on a CPU has neither")
        request = request.model_copy(update={"deadlines": default_deadlines(0) | request.deadlines})
        trial_dir.write_request(request)
        words = command or [sys.executable, "-m", "tuner.worker", str(trial_dir.path)]
        process, write_end = self._spawn(words, request, trial_dir)
        family = Family(process.pid, request.trial_uuid)
        return Worker(
            process,
            request,
            trial_dir,
            parent_pipe=write_end,
            memory=Memory(family, request, meter, self._host_total_bytes),
            family=family,
            grace_s=self._grace_s,
        )

    def _spawn(
        self, words: Sequence[str], request: TrialRequest, trial_dir: TrialDir
    ) -> tuple[subprocess.Popen[bytes], int]:
        read_end, write_end = os.pipe()
        environment = worker_environment(self._base_environment, request, read_end)
        try:
            with trial_dir.log_path.open("ab") as log:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    pass_fds=(read_end,),
                )
            parent_pipe.arm(read_end, process.pid)
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        return process, write_end


def worker_environment(base: Mapping[str, str], request: TrialRequest, read_end: int) -> dict[str, str]:
    """Return the whole environment of a worker."""
    return (
        handed_on(base)
        | request.environment
        | {
            "CUDA_VISIBLE_DEVICES": request.device_uuid or "",
            "TORCHINDUCTOR_CACHE_DIR": os.path.join(request.cache_dir, "inductor"),
            "TRITON_CACHE_DIR": os.path.join(request.cache_dir, "triton"),
            "PYTHONUNBUFFERED": "1",
            parent_pipe.PIPE_VARIABLE: str(read_end),
            strays.TRIAL_VARIABLE: request.trial_uuid,
            strays.PARENT_VARIABLE: processes.identity(os.getpid()),
        }
    )

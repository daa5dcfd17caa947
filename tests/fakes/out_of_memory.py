"""Ran out of memory in the first step, and says so."""

from say import phase, result

phase("first_step")
failure = {"failure_class": "oom", "phase": "first_step", "type": "torch.OutOfMemoryError", "detail": "asked for more"}
result(throughput=None, failure=failure)

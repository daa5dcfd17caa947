"""What these tests share with those of the worker: no network, a fresh dynamo, a backend that generates no code."""

from __future__ import annotations

from tests.tuner.worker.conftest import fresh_dynamo, quick_compile, same_seed

__all__ = ["fresh_dynamo", "quick_compile", "same_seed"]

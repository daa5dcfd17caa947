"""What would change a measurement is not handed on; what is needed to find things is."""

from __future__ import annotations

import pytest

from tuner.inherited import handed_on, left_out

KEPT = {
    "PATH": "/bin",
    "CXX": "g++",
    "HF_HOME": "/models",
    "https_proxy": "http://proxy",
    "LD_LIBRARY_PATH": "/cuda",
    "CUDA_HOME": "/cuda",
    "TRITON_PTXAS_PATH": "/cuda/ptxas",
    "TORCH_HOME": "/torch",
}


@pytest.mark.parametrize(
    "name",
    [
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
        "TORCH_COMPILE_DISABLE",
        "TORCH_COMPILE_JOB_ID",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "TORCHDYNAMO_DISABLE",
        "TORCH_LOGS",
        "CUDA_LAUNCH_BLOCKING",
    ],
)
def test_settings_of_torch_stay_behind(name: str) -> None:
    environment = KEPT | {name: "1"}
    assert handed_on(environment) == KEPT and left_out(environment) == [name]
    assert name in environment, "the caller's own is left as it is"


def test_nothing_is_named_where_nothing_is_left_out() -> None:
    assert handed_on(KEPT) == KEPT and left_out(KEPT) == []

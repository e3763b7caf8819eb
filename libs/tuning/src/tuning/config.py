"""The one place that reads the environment."""

import os

from triton_rt import worker_environment


def tuning_environment(device: int | None) -> dict[str, str]:
    """The environment of a tuning worker: it sees one GPU, this process's `device`, or none."""
    env = worker_environment()
    if device is not None:
        visible = [d for d in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if d]
        env["CUDA_VISIBLE_DEVICES"] = visible[device] if visible else str(device)
    return env

"""Which model the GPU tests serve: real weights where there are some, else the seeded tiny one."""

from __future__ import annotations

import os
from pathlib import Path

from blink_numba.models import model_path


def served_model() -> str:
    """A GGUF file of the folder ``MODEL_DIR``, the fetched smollm2, or ``tiny``."""
    folder = os.environ.get("MODEL_DIR")
    if folder:
        found = sorted(Path(folder).glob("*.gguf"))
        assert found, f"MODEL_DIR={folder} holds no GGUF file"
        return str(found[0])
    return "smollm2" if model_path("smollm2").exists() else "tiny"

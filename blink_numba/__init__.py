"""blink-numba: LLM serving whose scheduler lives on the GPU, as a kernel-first research codebase.

The product's face: `LLM` and `SamplingParams` (offline generation), `load_tokenizer`, the
command line (`blink_numba.cli`), the OpenAI-compatible front end (`blink_numba.frontend`),
engines, models and benches. What it stands on are its siblings, importable by their own
names: `ring` (shared buffer, slot protocol), `scheduler`, `graphs`, `rdma` (transports) and
`tokenizer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blink_numba._siblings import check_siblings

check_siblings()

__version__ = "0.1.0"
__all__ = ["LLM", "RequestOutput", "SamplingParams", "__version__", "load_tokenizer"]

# Heavy modules are loaded at first use: `import blink_numba` stays fast and needs no compiler.
_HOME = {
    "LLM": "blink_numba.llm",
    "SamplingParams": "blink_numba.sampling",
    "RequestOutput": "blink_numba.outputs",
    "load_tokenizer": "blink_numba.vocabularies",
}

if TYPE_CHECKING:
    from blink_numba.llm import LLM
    from blink_numba.outputs import RequestOutput
    from blink_numba.sampling import SamplingParams
    from blink_numba.vocabularies import load_tokenizer


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'blink_numba' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

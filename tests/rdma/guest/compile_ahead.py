"""Fill the compile cache with what the guest will run; the guest is too slow to compile.

Run natively, with Numba told to compile for a processor that the emulator also has.
"""

from __future__ import annotations

import httpx
import numpy as np

from blink_numba.runtime import LocalEngine
from rdma import FrontEndPort, Request, ShmTransport
from tests.rdma.guest.serve_scenarios import CONFIG, HTTP_PLACE

# LLVM's names; the emulator offers both
PROCESSOR = {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}


def main() -> None:
    from tests.frontend.harness import Running  # compiles the tokenizer's kernels

    with (
        LocalEngine(CONFIG, print),
        FrontEndPort(ShmTransport.attach(CONFIG.ring_name)) as port,
        Running(CONFIG.ring_name, front_end=HTTP_PLACE) as running,
    ):
        port.submit(Request(np.arange(5, dtype=np.int32), max_tokens=4))
        while port.live():
            port.poll()
        for stream in (False, True):
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "stream": stream}
            httpx.post(f"{running.url}/v1/completions", json=body, timeout=60.0).raise_for_status()


if __name__ == "__main__":
    main()

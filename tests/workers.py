"""How the tests are spread over the workers of pytest-xdist, and in which order.

A file goes to one worker as a whole, so what its tests share is made once. The compiler's longest
jobs come first, one to a worker, so that no worker compiles what another is compiling; whatever
starts servers with engines comes as one group, for two of them would starve each other on two cores.
"""

from __future__ import annotations

from typing import Any

# each compiles for half a minute where the cache is empty, and needs nothing of the other
COMPILES = ("tests/engines/test_cpu_architectures.py", "tests/scheduler/test_loops.py")
# what comes next while the other of the two may still be compiling: nothing of both, the forward pass alone
FOLLOWS = ("tests/scheduler/test_cuda_kernel.py", "tests/engines/test_cpu_reference.py")
# take all cores for themselves
SERVERS = (
    "tests/frontend/test_load.py",
    "tests/frontend/test_soak.py",
    "tests/frontend/test_faults.py",
    "tests/frontend/test_llm.py",
)
# long, of many tests that share nothing: spread one by one, begun while there is much else to do
SINGLES = ("tests/protocol/",)

_ORDER = (*COMPILES, *FOLLOWS, *SERVERS, *SINGLES)


def place(nodeid: str) -> int:
    """Where in the order a test belongs; the others follow as they were collected."""
    file = nodeid.partition("::")[0]
    return next((index for index, prefix in enumerate(_ORDER) if file.startswith(prefix)), len(_ORDER))


def group(nodeid: str) -> str:
    """Tests of one group run on one worker, one after the other."""
    file = nodeid.partition("::")[0]
    if file in SERVERS:
        return "servers"
    return nodeid if file.startswith(SINGLES) else file


def scheduler(config: Any, log: Any) -> Any:
    """The scheduler of pytest-xdist that goes by `group`, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False  # by number of tests: says nothing about their length
    return ByGroup(config, log)

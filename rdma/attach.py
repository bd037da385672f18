"""Taking a front end's place in a ring: never beside a living predecessor."""

from __future__ import annotations

import time

import numpy as np

from rdma.errors import AttachError, FrontEndHeld
from rdma.operations import PUBLISH, READ, Operations
from rdma.slots import SlotTracker
from rdma.staging import Share, Staging
from rdma.transport import Transport
from ring import layout as at
from ring.sections import LINE
from ring.words import RELEASE, SLOTS_PER_DOORBELL, pack_req

_LOOK_EVERY_S = 0.002


def take_place(
    transport: Transport, share: Share, staging: Staging, slots: SlotTracker, *, takeover: bool,
    deadline_s: float,
) -> int:  # fmt: skip
    """Make this process front end `share.front_end`; the head of its token log.

    A predecessor that did not close its port must be confirmed dead and fenced, and the
    scheduler must have drained it, before anything of its share is touched. Then the slots
    are taken at the incarnations they have, completed ones are released, and the doorbell
    words are written anew.

    Raises
    ------
    FrontEndHeld, AttachError
    """
    give_up = time.monotonic() + deadline_s
    read = _look(transport, share, staging)
    pid, started = int(staging.view("port")[at.P_PID]), int(staging.view("port")[at.P_STARTED])
    if (pid or started) and int(staging.view("port")[at.P_GENERATION]) == int(
        staging.view("fence")[at.F_FENCE]
    ):
        _confirm_and_fence(transport, share, staging, pid, started, takeover)
        read()
    fence = int(staging.view("fence")[at.F_FENCE])
    while int(staging.view("fe_sched")[at.D_DRAINED]) != fence:
        if time.monotonic() >= give_up:
            raise AttachError(
                f"the requests of front end {share.front_end}'s predecessor were not ended within "
                f"{deadline_s:g} s: is the scheduler running?"
            )
        time.sleep(_LOOK_EVERY_S)
        read()
    return _occupy(transport, share, staging, slots, fence)


def _look(transport: Transport, share: Share, staging: Staging):
    batch = Operations(4)
    batch.add(READ, share.line(at.FE_PORT), staging.port, LINE)
    batch.add(READ, share.line(at.FE_FENCE), staging.fence, LINE)
    batch.add(READ, share.line(at.FE_SCHED), staging.fe_sched, LINE)

    def read() -> None:
        transport.post(batch)
        transport.complete()

    read()
    return read


def _confirm_and_fence(
    transport: Transport, share: Share, staging: Staging, pid: int, started: int, takeover: bool
) -> None:
    """Declare the holder of the place dead, if it is and if that was asked for."""
    if not transport.holder_gone(share.front_end, pid, started):
        raise FrontEndHeld(
            f"front end {share.front_end} is held by {_holder(pid)}, which is not known to have ended: "
            "stop it, or take another front end"
        )
    if not takeover:
        raise AttachError(
            f"front end {share.front_end} was held by {_holder(pid)}, which ended without closing its port: "
            "attach with takeover=True to have its requests ended and take its place"
        )
    transport.declare_dead(share.front_end)


def _holder(pid: int) -> str:
    return f"process {pid}" if pid else "a process on another host"


def _occupy(transport: Transport, share: Share, staging: Staging, slots: SlotTracker, fence: int) -> int:
    batch = Operations(share.slots + 4)
    batch.add(READ, share.line(at.FE_SCHED), staging.fe_sched, LINE)
    batch.add(READ, share.ctl, staging.ctl, share.slots * at.CTL_WORDS)
    batch.add(READ, share.req, staging.req, share.slots)
    transport.post(batch)
    transport.complete()
    req, doorbell = staging.view("req"), staging.view("doorbell")
    try:
        unreleased = slots.refresh(staging.view("ctl"), req)
    except ValueError as error:
        raise AttachError(str(error)) from None
    batch.clear()
    for slot in unreleased.tolist():
        req[slot] = pack_req(int(slots.incarnation[slot]), RELEASE)
        batch.add(PUBLISH, share.req + slot, staging.req + slot, 1)
    odd = (slots.incarnation & 1).reshape(-1, SLOTS_PER_DOORBELL)
    doorbell[:] = (odd << np.arange(SLOTS_PER_DOORBELL)).sum(axis=1)
    batch.add(PUBLISH, share.doorbell, staging.doorbell, doorbell.shape[0])
    port = staging.view("port")
    port[at.P_PID], port[at.P_STARTED] = transport.identity()
    port[at.P_GENERATION] = fence
    port[at.P_BEAT] += 1
    batch.add(PUBLISH, share.line(at.FE_PORT), staging.port, LINE)
    transport.post(batch)
    transport.complete()
    return int(staging.view("fe_sched")[at.D_LOG_HEAD])

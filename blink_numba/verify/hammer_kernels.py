"""The claim hammer's kernel: many blocks contend for every slot."""

from __future__ import annotations

from blink_numba.verify.hammer_steps import (
    BROKEN,
    T_CONTENDERS,
    T_DONE,
    T_LATE,
    T_VIOLATIONS,
    T_WON,
    WAITING,
    contend,
    look,
    write_request,
)
from graphs._cuda import cuda
from ring import layout as at
from ring.atomics import fetch_add, load_acquire, load_relaxed, now_ns, pause, store_release
from ring.views import ring_view
from ring.words import RELEASE, ctl_incarnation, next_incarnation, pack_req
from scheduler import state as sc


@cuda.jit
def claim_hammer(words, narrow, state_words, wins, tallies, front_ends, rounds, longest_ns):
    """Contend until the device's front ends are done, or the host says stop.

    Parameters
    ----------
    words, narrow : int64[n], int32[2 n]
        The ring, in the GPU's memory or registered host memory.
    wins : int64[slots]
        How often each slot was won.
    tallies : int64[TALLIES]
    front_ends : int
        The first so many threads are front ends of a slot each, `rounds` requests long; 0: the
        host is the front end.
    longest_ns : int
        Every loop ends by then.
    """
    thread = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    ring = ring_view(words, narrow)
    state = sc.state_view(state_words)
    began = now_ns()
    if thread < front_ends:
        _submit_rounds(ring, wins, tallies, thread, rounds, began + longest_ns)
        fetch_add(tallies, T_DONE, 1)
        return
    slots = wins.shape[0]
    slot = (thread * 97) % slots
    contenders = won = broken = 0
    while True:
        for _ in range(slots):
            found = contend(ring, state, wins, slot)
            contenders += found != 0
            won += found >= 2
            broken += found == 3
            slot = slot + 1 if slot + 1 < slots else 0
        if front_ends > 0:
            if load_relaxed(tallies, T_DONE) >= front_ends:
                break
        elif load_relaxed(ring.command, at.C_STOP) != at.RUN:
            break
        if now_ns() - began > longest_ns:
            fetch_add(tallies, T_LATE, 1)
            break
    fetch_add(tallies, T_CONTENDERS, contenders)
    fetch_add(tallies, T_WON, won)
    fetch_add(tallies, T_VIOLATIONS, broken)


@cuda.jit(device=True)
def _submit_rounds(ring, wins, tallies, slot, rounds, end):
    for _ in range(rounds):
        word = load_acquire(ring.ctl, slot * at.CTL_WORDS + at.W0)
        incarnation = next_incarnation(ctl_incarnation(word))
        write_request(ring, slot, incarnation)
        spins = 0
        found = WAITING
        while found == WAITING:
            found = look(ring, wins, slot, incarnation, False)
            pause(spins)
            spins += 1
            if spins % 1024 == 0 and now_ns() > end:
                fetch_add(tallies, T_LATE, 1)
                return
        if found == BROKEN:
            fetch_add(tallies, T_VIOLATIONS, 1)
        store_release(ring.req, slot, pack_req(incarnation, RELEASE))


__all__ = ["claim_hammer"]

"""Swapping the policy while the scheduler runs.

The host writes a name and a number (``COMMAND``); at the next step boundary lane 0 looks the
name up among the presets and puts it in force: a few words, no launch is delayed. For a
policy that is not among them the scheduler goes on and says so in ``S_POLICY_WANTED``; the
host loads and compiles it meanwhile, parks the scheduler at a boundary (``C_PARK``), changes
the loop's functions and runs it again. No request is touched by any of it.
"""

from __future__ import annotations

from ring import layout as at
from ring.atomics import load_relaxed, store_relaxed, store_release
from ring.jit import uncounted
from ring.recorder import E_POLICY, record
from scheduler import state as sc

NO_PRESET = -1


@uncounted
def swap(ring, state, now):
    """Serve a request to swap that `scheduler.ending.watch` saw. Lane 0, at a boundary."""
    core = state.core
    number = core[sc.K_POLICY_ASKED]
    if number == state.policy[sc.P_SERIAL]:
        return
    state.policy[sc.P_SERIAL] = number
    preset = _find_preset(ring, state)
    record(ring.flight, core[sc.K_RECORDS], now, E_POLICY, number, preset, 0, 0)
    core[sc.K_RECORDS] += 1
    if preset == NO_PRESET:
        store_release(ring.status, at.S_POLICY_WANTED, number)
        return
    put_in_force(state, preset)
    announce(ring, state)
    store_release(ring.status, at.S_POLICY, number)


@uncounted
def _find_preset(ring, state):
    for preset in range(state.policy[sc.P_PRESETS]):
        here = sc.P_PRESET_0 + preset * sc.PRESET_WORDS + sc.PR_NAME
        same = True
        for k in range(sc.NAME_WORDS):
            same = same and state.policy[here + k] == load_relaxed(ring.command, at.C_POLICY_NAME + k)
        if same:
            return preset
    return NO_PRESET


@uncounted
def put_in_force(state, preset):
    """Copy a preset's words to where the policy's functions read them; its memory is empty."""
    words, here = state.policy, sc.P_PRESET_0 + preset * sc.PRESET_WORDS
    words[sc.P_ACTIVE] = preset
    words[sc.P_PREEMPTIVE] = words[here + sc.PR_PREEMPTIVE]
    words[sc.P_MARGIN] = words[here + sc.PR_MARGIN]
    words[sc.P_ACCOUNTING] = words[here + sc.PR_ACCOUNTING]
    for k in range(sc.NAME_WORDS):
        words[sc.P_NAME + k] = words[here + sc.PR_NAME + k]
    for k in range(sc.PARAMETERS):
        words[sc.P_PARAMETERS + k] = words[here + sc.PR_PARAMETERS + k]
    for k in range(sc.P_MEMORY, sc.P_PRESET_0):
        words[k] = 0
    state.core[sc.K_TRY_ADMIT] = 1


@uncounted
def announce(ring, state):
    """Tell observers the name of the policy in force."""
    for k in range(sc.NAME_WORDS):
        store_relaxed(ring.status, at.S_POLICY_NAME + k, state.policy[sc.P_NAME + k])

"""The simulated front end: submits as the protocol says, releases what is read."""

from __future__ import annotations

from ring import layout as at
from ring.atomics import load_relaxed, store_release
from ring.jit import uncounted
from ring.layout import DESCRIPTOR_WORDS
from ring.words import (
    RELEASE,
    SLOTS_PER_DOORBELL,
    SUBMIT,
    next_incarnation,
    pack_req,
    req_incarnation,
)
from scheduler.simulator.events import N_FREE_SLOTS, N_THINKING, O_EXTENT


@uncounted
def submit(ring, events, request):
    """Put a request into a free slot; the caller saw that there is one."""
    counts = events.counts
    counts[N_FREE_SLOTS] -= 1
    slot = events.free_slots[counts[N_FREE_SLOTS]]
    events.request_of_slot[slot] = request
    here, extent = slot * DESCRIPTOR_WORDS, events.options[O_EXTENT]
    ring.descriptor[here + at.Q_PROMPT_START] = slot * extent
    ring.descriptor[here + at.Q_PROMPT_LEN] = events.prompt[request]
    ring.descriptor[here + at.Q_OUTPUT_START] = slot * extent + events.prompt[request]
    ring.descriptor[here + at.Q_MAX_TOKENS] = events.output[request]
    ring.descriptor[here + at.Q_DEADLINE_NS] = events.deadline[request]
    ring.descriptor[here + at.Q_PRIORITY] = events.priority[request]
    ring.descriptor[here + at.Q_TENANT] = events.tenant[request]
    ring.descriptor[here + at.Q_FLAGS] = at.FLAG_IGNORE_EOS
    incarnation = next_incarnation(req_incarnation(load_relaxed(ring.req, slot)))
    store_release(ring.req, slot, pack_req(incarnation, SUBMIT))
    word, bit = slot // SLOTS_PER_DOORBELL, slot % SLOTS_PER_DOORBELL
    store_release(ring.doorbell, word, load_relaxed(ring.doorbell, word) ^ (1 << bit))


@uncounted
def release(ring, events, slot):
    """The answer is read: the slot is free again."""
    incarnation = req_incarnation(load_relaxed(ring.req, slot))
    store_release(ring.req, slot, pack_req(incarnation, RELEASE))
    events.request_of_slot[slot] = -1
    events.free_slots[events.counts[N_FREE_SLOTS]] = slot
    events.counts[N_FREE_SLOTS] += 1


# --- users of a closed loop: a binary heap of (time, request), the earliest on top ---


@uncounted
def think(events, time, request):
    """A user will send `request` at `time`."""
    heap, child = events.thinking, events.counts[N_THINKING]
    events.counts[N_THINKING] += 1
    while child > 0:
        parent = (child - 1) // 2
        if heap[2 * parent] <= time:
            break
        heap[2 * child], heap[2 * child + 1] = heap[2 * parent], heap[2 * parent + 1]
        child = parent
    heap[2 * child], heap[2 * child + 1] = time, request


@uncounted
def send_next(events):
    """Take the request on top of the heap."""
    heap = events.thinking
    events.counts[N_THINKING] -= 1
    count, top = events.counts[N_THINKING], heap[1]
    time, request = heap[2 * count], heap[2 * count + 1]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            break
        if child + 1 < count and heap[2 * child + 2] < heap[2 * child]:
            child += 1
        if heap[2 * child] >= time:
            break
        heap[2 * parent], heap[2 * parent + 1] = heap[2 * child], heap[2 * child + 1]
        parent = child
    heap[2 * parent], heap[2 * parent + 1] = time, request
    return top

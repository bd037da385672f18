"""Finding new requests: scan, claim by compare-and-swap, ticket.

Scanning reads with relaxed loads (acquire loads serialise: 2.6 µs against 1.04 µs for 4096
records) and acquires only on a hit. A doorbell hit is a bit that differs from the lowest
incarnation bit the scheduler has seen of that slot: level-triggered, never cleared, so
nothing is lost when a scan is interrupted or the scheduler restarts.
"""

from __future__ import annotations

from ring import layout as at
from ring.atomics import compare_and_swap, fetch_add, load_acquire, load_relaxed, store_relaxed
from ring.jit import uncounted
from ring.layout import DESCRIPTOR_WORDS, DEVICE_PLACEMENT
from ring.recorder import E_CLAIM, record
from ring.states import (
    PREFILL_PENDING,
    R_ABORTED,
    R_CANCELLED,
    R_NONE,
    R_REJECTED,
    is_live,
)
from ring.words import (
    CANCEL,
    SLOTS_PER_DOORBELL,
    SUBMIT,
    ctl_incarnation,
    ctl_state,
    next_incarnation,
    pack_ctl,
    req_command,
    req_incarnation,
)
from scheduler import state as sc
from scheduler.ending import end_waiting

_LOW_32 = 0xFFFFFFFF


@uncounted
def scan(ring, state, lane, lanes):
    """Claim every new request; each lane looks at its own doorbell words or records."""
    if state.config[sc.G_PLACEMENT] == DEVICE_PLACEMENT:
        _scan_records(ring, state, lane, lanes)
        return
    for word in range(lane, state.parity.shape[0], lanes):
        hits = (load_relaxed(ring.doorbell, word) ^ load_relaxed(state.parity, word)) & _LOW_32
        if hits != 0:
            for bit in range(SLOTS_PER_DOORBELL):
                if (hits >> bit) & 1:
                    claim(ring, state, word * SLOTS_PER_DOORBELL + bit)


@uncounted
def _scan_records(ring, state, lane, lanes):
    """Look at all records, eight at a time: one by one, each load would wait for the one before."""
    last = ring.req.shape[0] - 1
    for first in range(lane, last + 1, 8 * lanes):
        word_0 = load_relaxed(ring.req, first)
        word_1 = load_relaxed(ring.req, min(first + lanes, last))
        word_2 = load_relaxed(ring.req, min(first + 2 * lanes, last))
        word_3 = load_relaxed(ring.req, min(first + 3 * lanes, last))
        word_4 = load_relaxed(ring.req, min(first + 4 * lanes, last))
        word_5 = load_relaxed(ring.req, min(first + 5 * lanes, last))
        word_6 = load_relaxed(ring.req, min(first + 6 * lanes, last))
        word_7 = load_relaxed(ring.req, min(first + 7 * lanes, last))
        asking = _asks(word_0) | _asks(word_1) << 1 | _asks(word_2) << 2 | _asks(word_3) << 3
        asking |= _asks(word_4) << 4 | _asks(word_5) << 5 | _asks(word_6) << 6 | _asks(word_7) << 7
        if asking == 0:
            continue
        for k in range(8):
            slot = first + k * lanes
            if (asking >> k) & 1 and slot <= last:
                _claim_if_new(ring, state, slot)


@uncounted
def _asks(word):
    """1 if a record asks for something, 0 if it is empty or released: most are."""
    command = req_command(word)
    return 1 if command == SUBMIT or command == CANCEL else 0


@uncounted
def _claim_if_new(ring, state, slot):
    seen = state.slots[slot * sc.SLOT_WORDS + sc.SL_INCARNATION]
    if req_incarnation(load_relaxed(ring.req, slot)) == next_incarnation(seen):
        claim(ring, state, slot)


@uncounted
def claim(ring, state, slot):
    """Take a slot's new request, if there is one. Returns whether this lane won it."""
    request = load_acquire(ring.req, slot)  # pairs with the submitter's release of req
    before = load_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0)
    incarnation = req_incarnation(request)
    if incarnation != next_incarnation(ctl_incarnation(before)) or is_live(ctl_state(before)):
        return False
    command = req_command(request)
    if command != SUBMIT and command != CANCEL:
        return False
    after = pack_ctl(incarnation, 0, R_NONE, PREFILL_PENDING)
    if compare_and_swap(ring.ctl, slot * at.CTL_WORDS + at.W0, before, after) != before:
        return False
    word, mask = slot // SLOTS_PER_DOORBELL, 1 << (slot % SLOTS_PER_DOORBELL)
    fetch_add(state.parity, word, mask if incarnation & 1 else -mask)
    fetch_add(state.claimed, word, mask)
    fetch_add(state.core, sc.K_CLAIMED, 1)
    return True


@uncounted
def search_orphans(ring, state):
    """Claim what a dead front end submitted without ringing its doorbell. Lane 0.

    It may have died between the two. Once a death: after the fence it writes no more.
    """
    if state.core[sc.K_DYING] == 0:
        return
    share = state.config[sc.G_SLOTS_PER_FRONT_END]
    for front_end in range(state.front_ends.shape[0] // sc.FRONT_END_WORDS):
        here = front_end * sc.FRONT_END_WORDS
        dying = state.front_ends[here + sc.FR_DYING]
        if dying != 0 and state.front_ends[here + sc.FR_SEARCHED] != dying:
            state.front_ends[here + sc.FR_SEARCHED] = dying
            for slot in range(front_end * share, (front_end + 1) * share):
                claim(ring, state, slot)


@uncounted
def take_tickets(ring, state, now):
    """Give the claims of this turn their tickets, in slot order. Lane 0, after a barrier."""
    left = state.core[sc.K_CLAIMED]
    if left == 0:
        return
    state.core[sc.K_CLAIMED] = 0
    for word in range(state.claimed.shape[0]):
        bits = state.claimed[word]
        if bits == 0:
            continue
        state.claimed[word] = 0
        for bit in range(SLOTS_PER_DOORBELL):
            if (bits >> bit) & 1:
                enqueue(ring, state, word * SLOTS_PER_DOORBELL + bit, now)
                left -= 1
        if left == 0:
            return


@uncounted
def enqueue(ring, state, slot, now):
    """Make a claimed slot known: ticket, deadline, place among the waiting, or its end.

    Called once an incarnation by lane 0; the claiming lane acquired `req`, so the descriptor
    is whole.
    """
    core = state.core
    record_at = slot * sc.SLOT_WORDS
    slots = state.slots
    descriptor = slot * DESCRIPTOR_WORDS
    word = load_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0)
    ticket = core[sc.K_NEXT_TICKET]
    core[sc.K_NEXT_TICKET] = ticket + 1
    core[sc.K_CLAIMS] += 1
    front_end = slot // state.config[sc.G_SLOTS_PER_FRONT_END]
    duration = ring.descriptor[descriptor + at.Q_DEADLINE_NS]
    slots[record_at + sc.SL_LIVE] = 1
    slots[record_at + sc.SL_INCARNATION] = ctl_incarnation(word)
    slots[record_at + sc.SL_TICKET] = ticket
    slots[record_at + sc.SL_SEAT] = sc.NO_SEAT
    slots[record_at + sc.SL_DEADLINE] = now + duration if 0 < duration < sc.NEVER - now else sc.NEVER
    slots[record_at + sc.SL_GENERATED] = 0
    slots[record_at + sc.SL_DOOM] = R_NONE
    slots[record_at + sc.SL_ARRIVED] = now
    slots[record_at + sc.SL_SINCE] = now
    slots[record_at + sc.SL_PROMPT_LEN] = ring.descriptor[descriptor + at.Q_PROMPT_LEN]
    slots[record_at + sc.SL_MAX_TOKENS] = ring.descriptor[descriptor + at.Q_MAX_TOKENS]
    slots[record_at + sc.SL_PRIORITY] = ring.descriptor[descriptor + at.Q_PRIORITY]
    slots[record_at + sc.SL_TENANT] = ring.descriptor[descriptor + at.Q_TENANT]
    slots[record_at + sc.SL_FRONT_END] = front_end
    slots[record_at + sc.SL_STATE] = PREFILL_PENDING
    slots[record_at + sc.SL_WAIT_INDEX] = core[sc.K_WAITING]
    state.waiting[core[sc.K_WAITING]] = slot
    core[sc.K_WAITING] += 1
    core[sc.K_TRY_ADMIT] = 1
    state.front_ends[front_end * sc.FRONT_END_WORDS + sc.FR_LIVE] += 1
    store_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W1, ticket)
    record(ring.flight, core[sc.K_RECORDS], now, E_CLAIM, slot, ctl_incarnation(word), ticket,
           slots[record_at + sc.SL_PROMPT_LEN])  # fmt: skip
    core[sc.K_RECORDS] += 1

    request = load_relaxed(ring.req, slot)
    if req_command(request) == CANCEL and req_incarnation(request) == ctl_incarnation(word):
        end_waiting(ring, state, slot, R_CANCELLED, now)
    elif state.front_ends[front_end * sc.FRONT_END_WORDS + sc.FR_DYING] != 0:
        end_waiting(ring, state, slot, R_ABORTED, now)
    elif not _can_serve(ring, state, slot):
        end_waiting(ring, state, slot, R_REJECTED, now)


@uncounted
def _can_serve(ring, state, slot):
    """Whether a descriptor makes sense and fits: a NIC may write anything."""
    config = state.config
    descriptor = slot * DESCRIPTOR_WORDS
    prompt_len = ring.descriptor[descriptor + at.Q_PROMPT_LEN]
    max_tokens = ring.descriptor[descriptor + at.Q_MAX_TOKENS]
    if prompt_len < 1 or max_tokens < 1 or prompt_len > config[sc.G_MAX_MODEL_LEN]:
        return False
    if max_tokens > config[sc.G_MAX_MODEL_LEN] - prompt_len:
        return False
    if ring.descriptor[descriptor + at.Q_MIN_TOKENS] > max_tokens:
        return False
    stops = ring.descriptor[descriptor + at.Q_STOP_COUNT]
    if stops < 0 or stops > at.MAX_STOP_IDS:
        return False
    share = config[sc.G_ARENA_SHARE]
    low = (slot // config[sc.G_SLOTS_PER_FRONT_END]) * share
    prompt_start = ring.descriptor[descriptor + at.Q_PROMPT_START]
    output_start = ring.descriptor[descriptor + at.Q_OUTPUT_START]
    if prompt_start < low or prompt_start > low + share - prompt_len:
        return False
    if output_start < low or output_start > low + share - max_tokens:
        return False
    pairs = ring.descriptor[descriptor + at.Q_LOGPROBS]
    if pairs < 0 or pairs > 1 + at.MAX_LOGPROBS:
        return False
    if pairs != 0:
        records = ring.descriptor[descriptor + at.Q_LOGPROBS_START]
        if records < low or records > low + share - 2 * pairs * max_tokens:
            return False
    blocks = (prompt_len + max_tokens + config[sc.G_BLOCK_SIZE] - 1) // config[sc.G_BLOCK_SIZE]
    return blocks <= config[sc.G_BLOCKS]

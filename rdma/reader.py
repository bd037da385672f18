"""Reading answers: one control read and one log read a poll, however many are in service.

A poll has two batches. The first brings the head of this front end's token log and the
control records of its live slots; the second, posted when the first is complete, brings the
log from where the last poll stopped to that head, then the head again. The words of one read
may be of different moments, so nothing is concluded from two of them except this: the
scheduler writes a token's extent word and log entry, then releases the log's head, then the
`ctl` that counts it. Hence

* a log entry below the head is whole, and the entries of a slot are its tokens in order;
* a count seen in one poll is covered by the head seen in the next: a slot that is still
  behind then has lost entries;
* entries read are genuine if the head, read after them, is not so far that the scheduler may
  have come round (a quarter of the log is kept as distance: it may write that much ahead
  of the head).

A slot whose entries were lost (the reader overslept, or the last of an answer never came)
is read from its extent, the truth, for the rest of its life: log entries carry no position,
so it could not find its place in the log again. So is, from the first token on, a slot that
wants log-probabilities (`ring.logprobs`): they are in no log, and its tokens come with them.
"""

from __future__ import annotations

import numpy as np

from rdma.operations import READ, Operations, append
from rdma.staging import EXTENT_WORDS, Share, Staging
from ring import layout as at
from ring.jit import njit
from ring.sections import LINE
from ring.states import DECODE_COMPLETED
from ring.words import (
    LOG_INCARNATION_MASK,
    ctl_incarnation,
    ctl_reason,
    ctl_state,
    ctl_tokens,
    log_incarnation,
    log_slot,
    log_token,
)

# columns of the table of slots
(T_LIVE, T_INCARNATION, T_CONSUMED, T_OUTPUT, T_MAX_TOKENS, T_BY_EXTENT, T_SEEN, T_EXTENT, T_NEW,
 T_AT, T_PAIRS, T_RECORDS, T_RECORDS_HERE) = range(13)  # fmt: skip
SLOT_FIELDS = 16

# words of the reader's marks
(M_TAIL, M_HEAD, M_ACTIVE, M_FIRST_SLOT, M_LOG_ENTRIES, M_TOKENS, M_OVERRUNS, M_LOST, M_EXTENT_READS,
 M_VIOLATIONS, M_ROTATION) = range(11)  # fmt: skip
MARKS = 16

# first words of the pieces, in the ring and in the staging memory
(P_SCHED, P_CTL, P_LOG, P_ARENA, S_SCHED, S_CTL, S_HEAD, S_LOG, S_EXTENTS) = range(9)

# an outcome of a poll: a slot that got tokens or ended
(E_SLOT, E_START, E_END, E_REASON, E_USAGE, E_PAIRS, E_RECORDS) = range(7)
EVENT_FIELDS = 7


@njit
def plan_control(table, count, places, active, marks):
    """Append the control read: the line of FE_SCHED, and `ctl` over the span of live slots."""
    count = append(table, count, READ, places[P_SCHED], places[S_SCHED], LINE)
    if marks[M_ACTIVE] == 0:
        return count
    low, high = active[0], active[0]
    for k in range(1, marks[M_ACTIVE]):
        low, high = min(low, active[k]), max(high, active[k])
    offset, words = low * at.CTL_WORDS, (high - low + 1) * at.CTL_WORDS
    return append(table, count, READ, places[P_CTL] + offset, places[S_CTL] + offset, words)


@njit
def plan_tokens(table, places, staging, slots, active, marks):
    """Rows of the second batch; how many. Sets the head up to which the log is read."""
    head = staging[places[S_SCHED] + at.D_LOG_HEAD]
    tail, entries = marks[M_TAIL], marks[M_LOG_ENTRIES]
    marks[M_HEAD] = head
    by_log = 0
    for k in range(marks[M_ACTIVE]):
        by_log += slots[active[k], T_BY_EXTENT] == 0
    count = 0
    if by_log == 0:
        marks[M_TAIL] = head  # what is between is for nobody: these slots came later, or read extents
    elif head - tail > entries // 2:
        lose_log(slots, active, marks)
    elif head > tail:
        first, last = tail & (entries - 1), (head - 1) & (entries - 1)
        if first <= last:
            count = append(table, count, READ, places[P_LOG] + first, places[S_LOG] + first, last - first + 1)
        else:
            count = append(table, count, READ, places[P_LOG] + first, places[S_LOG] + first, entries - first)
            count = append(table, count, READ, places[P_LOG], places[S_LOG], last + 1)
        count = append(table, count, READ, places[P_SCHED], places[S_HEAD], LINE)
    if by_log == marks[M_ACTIVE]:
        return count
    return _plan_extents(table, count, places, staging, slots, active, marks)


@njit
def _plan_extents(table, count, places, staging, slots, active, marks):
    """Append reads of the extents of slots that lost their log, new slots first."""
    room = EXTENT_WORDS
    marks[M_ROTATION] += 1
    for urgent in (True, False):
        for k in range(marks[M_ACTIVE]):
            # another slot first each time: nobody starves when the staging memory is short
            index = active[(k + marks[M_ROTATION]) % marks[M_ACTIVE]]
            record = slots[index]
            if record[T_BY_EXTENT] == 0 or (record[T_CONSUMED] == 0) != urgent:
                continue
            word = staging[places[S_CTL] + index * at.CTL_WORDS]
            if ctl_incarnation(word) != record[T_INCARNATION]:
                continue
            position = record[T_OUTPUT] + record[T_CONSUMED]
            lead = position & 1
            new = min(ctl_tokens(word), record[T_MAX_TOKENS]) - record[T_CONSUMED]
            pairs = record[T_PAIRS]
            new = min(new, 2 * room - lead if pairs == 0 else (room - 1) // (pairs + 1))
            if new <= 0 or count + 1 + (pairs != 0) > table.shape[0]:
                continue
            words = (lead + new + 1) // 2
            local = places[S_EXTENTS] + EXTENT_WORDS - room
            count = append(table, count, READ, places[P_ARENA] + position // 2, local, words)
            room -= words
            record[T_EXTENT] = 2 * local + lead
            record[T_NEW] = new
            marks[M_EXTENT_READS] += 1
            if pairs != 0:
                local = places[S_EXTENTS] + EXTENT_WORDS - room
                remote = places[P_ARENA] + record[T_RECORDS] // 2 + pairs * record[T_CONSUMED]
                count = append(table, count, READ, remote, local, pairs * new)
                room -= pairs * new
                record[T_RECORDS_HERE] = local
    return count


@njit
def lose_log(slots, active, marks):
    """The reader fell behind the log: go on from its head, live slots by their extents."""
    marks[M_TAIL] = marks[M_HEAD]
    marks[M_OVERRUNS] += 1
    for k in range(marks[M_ACTIVE]):
        if slots[active[k], T_BY_EXTENT] == 0:
            slots[active[k], T_BY_EXTENT] = 1
            slots[active[k], T_NEW] = 0


@njit
def _own(entry, slots, marks):
    """Index of the live slot that a log entry belongs to, -1 for none."""
    index = log_slot(entry) - marks[M_FIRST_SLOT]
    if index < 0 or index >= slots.shape[0]:
        return -1
    record = slots[index]
    if record[T_LIVE] == 0 or record[T_BY_EXTENT] != 0:
        return -1
    if record[T_INCARNATION] & LOG_INCARNATION_MASK != log_incarnation(entry):
        return -1
    return index


@njit
def _count_log(places, staging, slots, marks):
    for position in range(marks[M_TAIL], marks[M_HEAD]):
        index = _own(staging[places[S_LOG] + (position & (marks[M_LOG_ENTRIES] - 1))], slots, marks)
        if index < 0:
            continue
        record = slots[index]
        if record[T_CONSUMED] + record[T_NEW] < record[T_MAX_TOKENS]:
            record[T_NEW] += 1
        else:
            marks[M_VIOLATIONS] += 1  # a token beyond the extent: the scheduler broke the protocol


@njit
def _place(places, staging, slots, active, marks, events):
    """Make the events, new slots first, and give each its range of tokens; their number."""
    count, filled, pairs = 0, 0, 0
    for urgent in (True, False):
        for k in range(marks[M_ACTIVE]):
            index = active[k]
            record = slots[index]
            if (record[T_CONSUMED] == 0) != urgent:
                continue
            usage = record[T_CONSUMED] + record[T_NEW]
            word = staging[places[S_CTL] + index * at.CTL_WORDS]
            reason = 0
            # the same word tells the end and the count: the end is told after the last token
            if (
                ctl_incarnation(word) == record[T_INCARNATION]
                and ctl_state(word) == DECODE_COMPLETED
                and usage >= ctl_tokens(word)
            ):
                reason = ctl_reason(word)
            record[T_AT] = filled
            if record[T_NEW] == 0 and reason == 0:
                continue
            events[count, E_SLOT] = index
            events[count, E_START] = filled
            filled += record[T_NEW]
            events[count, E_END] = filled
            events[count, E_REASON] = reason
            events[count, E_USAGE] = usage
            events[count, E_PAIRS] = record[T_PAIRS]
            events[count, E_RECORDS] = pairs
            pairs += record[T_PAIRS] * record[T_NEW]
            count += 1
    marks[M_TOKENS] += filled
    return count


@njit
def _fill(places, staging, narrow, slots, marks, events, count, tokens, records):
    """Copy tokens and pairs to their places: from the log, then from extents."""
    for position in range(marks[M_TAIL], marks[M_HEAD]):
        entry = staging[places[S_LOG] + (position & (marks[M_LOG_ENTRIES] - 1))]
        index = _own(entry, slots, marks)
        if index >= 0 and slots[index, T_CONSUMED] < slots[index, T_MAX_TOKENS]:
            tokens[slots[index, T_AT]] = log_token(entry)
            slots[index, T_AT] += 1
            slots[index, T_CONSUMED] += 1
    for event in range(count):
        record = slots[events[event, E_SLOT]]
        if record[T_BY_EXTENT] != 0:
            for k in range(record[T_NEW]):
                tokens[record[T_AT] + k] = narrow[record[T_EXTENT] + k]
            for k in range(record[T_PAIRS] * record[T_NEW]):
                records[events[event, E_RECORDS] + k] = staging[record[T_RECORDS_HERE] + k]
            record[T_CONSUMED] += record[T_NEW]


@njit
def _settle(places, staging, slots, active, marks, events, count):
    """Close the poll: ended slots leave, slots that lost log entries go over to extents."""
    for event in range(count):
        if events[event, E_REASON] != 0:
            slots[events[event, E_SLOT], T_LIVE] = 0
    left = 0
    for k in range(marks[M_ACTIVE]):
        index = active[k]
        record = slots[index]
        record[T_NEW] = 0
        if record[T_LIVE] == 0:
            continue
        active[left] = index
        left += 1
        if record[T_BY_EXTENT] == 0 and record[T_CONSUMED] < record[T_SEEN]:
            record[T_BY_EXTENT] = 1
            marks[M_LOST] += 1
        word = staging[places[S_CTL] + index * at.CTL_WORDS]
        if ctl_incarnation(word) == record[T_INCARNATION]:
            record[T_SEEN] = ctl_tokens(word)
    marks[M_ACTIVE] = left
    marks[M_TAIL] = marks[M_HEAD]


@njit
def deliver(places, staging, narrow, slots, active, marks, events, tokens, records):
    """Turn what the two batches brought into events, new slots first; how many.

    Parameters
    ----------
    events : int64[slots, 7]
        Slot, range in `tokens`, reason (0 unless final), tokens so far, pairs a token, the first of
        them in `records`.
    tokens : int32[n]
    records : int64[n]
        Packed pairs (`ring.logprobs`).
    """
    entries = marks[M_LOG_ENTRIES]
    if marks[M_HEAD] > marks[M_TAIL]:
        head_after = staging[places[S_HEAD] + at.D_LOG_HEAD]
        if head_after - marks[M_TAIL] > entries - entries // 4:
            lose_log(slots, active, marks)
    _count_log(places, staging, slots, marks)
    count = _place(places, staging, slots, active, marks, events)
    _fill(places, staging, narrow, slots, marks, events, count, tokens, records)
    _settle(places, staging, slots, active, marks, events, count)
    return count


class TokenReader:
    """Follows the answers of one front end's live slots.

    Attributes
    ----------
    active : int
        Slots in service.
    """

    def __init__(self, share: Share, staging: Staging) -> None:
        slots = share.slots
        entries = share.ring.geometry.log_entries
        self._staging = staging
        self._slots = np.zeros((slots, SLOT_FIELDS), np.int64)
        self._active = np.zeros(slots, np.int64)
        self._marks = np.zeros(MARKS, np.int64)
        self._marks[M_FIRST_SLOT] = share.first_slot
        self._marks[M_LOG_ENTRIES] = entries
        self._places = np.array(
            [share.line(at.FE_SCHED), share.ctl, share.log, share.arena,
             staging.fe_sched, staging.ctl, staging.head, staging.log, staging.extents], np.int64
        )  # fmt: skip
        self._rows = Operations(2 * slots + 4)
        self.events = np.zeros((slots, EVENT_FIELDS), np.int64)
        self.tokens = np.zeros(entries // 2 + 2 * EXTENT_WORDS, np.int32)
        self.records = np.zeros(EXTENT_WORDS, np.int64)

    @property
    def active(self) -> int:
        return int(self._marks[M_ACTIVE])

    def start_at(self, head: int) -> None:
        """Ignore the log before `head`: it is a predecessor's."""
        self._marks[M_TAIL] = self._marks[M_HEAD] = head

    @property
    def tail(self) -> int:
        """Entries of the log read or passed over."""
        return int(self._marks[M_TAIL])

    def track(
        self, slot: int, incarnation: int, output_start: int, max_tokens: int, pairs: int = 0,
        records_start: int = 0,
    ) -> None:  # fmt: skip
        """Follow a slot from its submission on."""
        record = self._slots[slot]
        record[:] = 0
        record[T_LIVE] = 1
        record[T_INCARNATION] = incarnation
        record[T_OUTPUT] = output_start
        record[T_MAX_TOKENS] = max_tokens
        record[T_PAIRS] = pairs
        record[T_RECORDS] = records_start
        record[T_BY_EXTENT] = pairs != 0
        self._active[self._marks[M_ACTIVE]] = slot
        self._marks[M_ACTIVE] += 1

    def add_control_read(self, batch: Operations) -> None:
        """Append the first batch of a poll."""
        batch.count = plan_control(batch.table, batch.count, self._places, self._active, self._marks)

    def token_reads(self) -> Operations:
        """The second batch, once the first is complete; may be empty."""
        rows = self._rows
        rows.count = plan_tokens(
            rows.table, self._places, self._staging.memory, self._slots, self._active, self._marks
        )
        return rows

    def deliver(self) -> int:
        """Events of this poll, once the second batch is complete; see `deliver` (function)."""
        return deliver(
            self._places, self._staging.memory, self._staging.narrow, self._slots, self._active,
            self._marks, self.events, self.tokens, self.records,
        )  # fmt: skip

    def counts(self) -> dict[str, int]:
        """How often the unusual happened since the start."""
        marks = self._marks
        return {
            "tokens": int(marks[M_TOKENS]),
            "log_overruns": int(marks[M_OVERRUNS]),
            "slots_that_lost_log": int(marks[M_LOST]),
            "extent_reads": int(marks[M_EXTENT_READS]),
            "protocol_violations": int(marks[M_VIOLATIONS]),
        }

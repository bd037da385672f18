"""Running ahead: the next decode step is launched behind the one in flight, its results not yet seen.

For a scheduler on the CPU whose launches take long (`graphs.launcher.runs_ahead`): its latency is
hidden behind the step that runs, and it looks at each step's results while the next one computes.
On the GPU none of this exists. Lane 0 of one lane.

- Only a decode step goes behind a decode step, of the same rows, when nothing is known that would
  change the batch: nobody ends by length, is to leave or may come, and each seat has its next block.
- At most one step is ahead: the one after it is launched once the first was collected and published.
- A step that was ahead when the one before ended is simply the step in flight from then on. No seat is
  given, taken or fed while one is ahead.
- A stop token is seen one step late. The step behind has a row for the request that ended: its
  token is thrown away, and seat, blocks and slot stay taken until that step is over, since it still
  writes there. The last token is published at once, the end one boundary later.
"""

from __future__ import annotations

from graphs.grid import EXECS
from graphs.launcher import LAUNCHED, launch
from graphs.step_io import LATE_FAULT, late_at
from ring.atomics import fence, load_relaxed, now_ns
from ring.jit import uncounted
from ring.recorder import E_DECODE, E_FAULT, E_RETRY, record
from ring.states import R_NONE
from scheduler import state as sc
from scheduler.admit import may_displace
from scheduler.blocks import take_next_block
from scheduler.choose import foresee, goes_on
from scheduler.collect import collect, feed, note, note_end, note_more, note_token, take_token


@uncounted
def collect_late(ring, state, io):
    """As `collect`; a decode step's results are where the step behind it leaves them alone.

    That step's inputs are the engine's business (`graphs.ahead`), and it has its blocks.
    """
    core, seats = state.core, state.seats
    if core[sc.K_IN_FLIGHT] != sc.DECODE_STEP:
        collect(ring, state, io, 0, 1)
        return
    step = core[sc.K_STEP]
    # ordered by the acquire of DONE, as the tokens are
    fault = load_relaxed(io.control, LATE_FAULT + (step & 1))
    for row in range(core[sc.K_IN_FLIGHT_ROWS]):
        seat = state.rows[row]
        here = seat * sc.SEAT_WORDS
        if seats[here + sc.SE_REASON] != R_NONE:
            continue  # it ended in the step before: a row to throw away
        seats[here + sc.SE_COMPUTED] += 1
        token = load_relaxed(io.late_token, late_at(step, state.config[sc.G_SEATS], seat))
        if take_token(state, seat, token, fault) == R_NONE and core[sc.K_AHEAD] == 0:
            feed(state, io, seat, token)
    core[sc.K_FAULT] = fault


@uncounted
def follow(ring, state, now):
    """The step behind the one that was collected is the one in flight now. The batch stays as it is.

    It is recorded as launched now, which is when it began: so the recorder's stamps tell a step's time.
    """
    core = state.core
    late = 0 if state.config[sc.G_POLL_SPINS] == 0 else now_ns() - now
    if core[sc.K_FAULT] != 0:
        number, fault = core[sc.K_RECORDS], core[sc.K_FAULT]
        record(ring.flight, number, now, E_FAULT, sc.ERROR_ENGINE, fault, core[sc.K_STEP], 0)
        core[sc.K_RECORDS] += 1
    core[sc.K_AHEAD] = 0
    core[sc.K_STEP] += 1
    core[sc.K_LAUNCHED_AT] = now + late
    core[sc.K_GOES_ON] = 1
    core[sc.K_VERDICT] = sc.STEPPED
    step, rows, graph = core[sc.K_STEP], core[sc.K_IN_FLIGHT_ROWS], core[sc.K_DECODE_GRAPH]
    record(ring.flight, core[sc.K_RECORDS], now, E_DECODE, step, rows, late, graph)
    core[sc.K_RECORDS] += 1


@uncounted
def note_late(state, io):
    """As `note`; who ended while a step is behind has its token published now, its end after that step."""
    seats, core = state.seats, state.core
    if core[sc.K_COLLECTED] != sc.DECODE_STEP:
        note(state, io, core[sc.K_COLLECTED], 0, 1)
        return
    for row in range(core[sc.K_COLLECTED_ROWS]):
        seat = state.rows[row]
        here = seat * sc.SEAT_WORDS
        if seats[here + sc.SE_REASON] == R_NONE:
            note_token(state, seat)
        elif core[sc.K_GOES_ON] != 0:
            if seats[here + sc.SE_OUT_TOKEN] >= 0:
                note_more(state, seat)
        elif seats[here + sc.SE_OUT_TOKEN] >= 0:
            note_token(state, seat)
        else:  # its last token went out a boundary ago, or it has none
            note_end(state, here, seats[here + sc.SE_REASON])


@uncounted
def go_ahead(ring, state, io, table, launcher, now):
    """Launch the step behind the one in flight, if the batch would decode on as it is.

    The last act of a turn: what the step before it left in this step's half is published.
    """
    core = state.core
    if core[sc.K_IN_FLIGHT] != sc.DECODE_STEP or core[sc.K_VERDICT] == sc.FAULTED:
        return
    if core[sc.K_JUDGING] == 0 and may_displace(state):
        return  # nobody has asked the policy since this batch began
    foresee(state)
    if not goes_on(state) or not _all_decode_on(state):
        return
    for row in range(core[sc.K_IN_FLIGHT_ROWS]):
        seat = state.rows[row]
        if _needs_block(state, seat):
            take_next_block(state, io, seat)
    _launch_behind(ring, state, table, launcher, now)


@uncounted
def _all_decode_on(state):
    """Whether each row is known to go on after the step in flight, and a block is there for who needs one."""
    seats, needed = state.seats, 0
    for row in range(state.core[sc.K_IN_FLIGHT_ROWS]):
        seat = state.rows[row]
        here = seat * sc.SEAT_WORDS
        generated = seats[here + sc.SE_GENERATED] + 1  # once the step in flight is over
        # at its min_tokens an answer may end from then on: that is told to the engine between steps
        if generated >= seats[here + sc.SE_MAX_TOKENS] or generated == seats[here + sc.SE_MIN_TOKENS]:
            return False
        if _needs_block(state, seat):
            needed += 1
    return needed <= state.core[sc.K_BLOCKS_FREE]


@uncounted
def _needs_block(state, seat):
    here = seat * sc.SEAT_WORDS
    following = state.seats[here + sc.SE_COMPUTED] + 1  # position of the row in the step behind
    return following >= state.seats[here + sc.SE_BLOCKS] * state.config[sc.G_BLOCK_SIZE]


@uncounted
def _launch_behind(ring, state, table, launcher, now):
    """Launch; if that is refused, the step is launched when the one in flight is over, as any other."""
    core, graph = state.core, state.core[sc.K_DECODE_GRAPH]
    executable = EXECS * graph + state.graph_turn[graph] % EXECS
    fence()  # the blocks are in the table before the graph reads it
    core[sc.K_AHEAD] = 1
    code = launch(launcher, table, executable)
    if code != LAUNCHED:
        core[sc.K_AHEAD] = 0
        core[sc.K_RETRIES] += 1
        record(ring.flight, core[sc.K_RECORDS], now, E_RETRY, executable, code, 0, 0)
        core[sc.K_RECORDS] += 1
        return
    state.graph_turn[graph] += 1
    core[sc.K_WINDOW] += 1
    core[sc.K_LAUNCHES] += 1
    core[sc.K_DECODES] += 1

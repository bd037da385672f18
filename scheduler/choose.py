"""What runs next: decode the seated, or pause them for an inline prefill; staging and launch."""

from __future__ import annotations

from graphs.grid import EXECS, decode_graph, prefill_graph
from graphs.launcher import LAUNCHED, WINDOW, launch
from graphs.step_io import TICKET
from ring.atomics import compare_and_swap, fence, fetch_add, now_ns, pause, store_relaxed
from ring.jit import uncounted
from ring.recorder import E_DECODE, E_FAULT, E_PREFILL, E_RETRY, record
from ring.states import DECODE_PAUSED, DECODE_PROCESSING, PREFILL_PROCESSING, R_NONE, R_REJECTED
from scheduler import state as sc
from scheduler.admit import may_try
from scheduler.policy import RUN_PREFILL
from scheduler.seats import decoding

NO_SEAT = -1


@uncounted
def choose(state, io, table, prefill_or_decode):
    """Plan the next step into K_PLAN, K_GRAPH and the step buffer's rows or runs. Lane 0.

    The paper's conditions for an inline prefill: one is pending, it has a seat (admission
    gave it one), and the window has room for the prefill and the decode that resumes.
    """
    core = state.core
    core[sc.K_PLAN] = sc.NOTHING
    core[sc.K_VERDICT] = sc.IDLE
    if core[sc.K_PARK] != 0:
        core[sc.K_VERDICT] = sc.PARKED  # nothing is in flight: whoever asked may change what it likes
        return
    if core[sc.K_SEATED] == 0:
        return
    if core[sc.K_ROWS_STALE] != 0:
        _list_rows(state, io, table)
    decodes = core[sc.K_DECODING]
    prefills = core[sc.K_SEATED] - decodes
    prefill = prefills > 0 and (decodes == 0 or prefill_or_decode(state.hot, state.words) == RUN_PREFILL)
    room = WINDOW - core[sc.K_WINDOW]
    if room < (2 if prefill else 1):
        core[sc.K_VERDICT] = sc.CLOSE_WINDOW
        return
    core[sc.K_VERDICT] = sc.BUSY
    if prefill:
        tokens = _pack_runs(state, io)
        core[sc.K_PLAN] = sc.PREFILL_STEP
        core[sc.K_GRAPH] = prefill_graph(table, tokens)
        if decodes > 0:
            _set_decoding(state, DECODE_PAUSED)
        core[sc.K_ROWS_STALE] = 1
    else:
        core[sc.K_PLAN] = sc.DECODE_STEP
        core[sc.K_GRAPH] = core[sc.K_DECODE_GRAPH]
        core[sc.K_IN_FLIGHT_ROWS] = decodes


@uncounted
def foresee(state):
    """Note in K_QUIET whether the batch would decode on as it is. Lane 0, while the step still runs.

    What is left to ask at its end is in `goes_on`: the code for it is short.
    """
    core = state.core
    news = core[sc.K_DOOMED] | core[sc.K_ROWS_STALE] | core[sc.K_PARK]
    news |= core[sc.K_POLICY_ASKED] ^ state.policy[sc.P_SERIAL]
    news |= (core[sc.K_IN_FLIGHT] ^ sc.DECODE_STEP) | (core[sc.K_SEATED] ^ core[sc.K_DECODING])
    quiet = news == 0 and core[sc.K_WINDOW] < WINDOW
    if quiet and core[sc.K_WAITING] != 0:
        quiet = not (may_try(state) or core[sc.K_DISPLACES] != 0)
    core[sc.K_QUIET] = 1 if quiet else 0


@uncounted
def goes_on(state):
    """Whether the batch decodes on as it is: nobody ended or came, nothing was asked for. Lane 0.

    Then `choose` would plan the same step again, and the launch need not wait for it.
    """
    core = state.core
    return core[sc.K_QUIET] != 0 and (core[sc.K_ENDED] | core[sc.K_STARVED] | core[sc.K_FAULT]) == 0


@uncounted
def plan_again(state):
    """Plan the step that was: the same rows, the same graph. Lane 0."""
    state.core[sc.K_PLAN] = sc.DECODE_STEP
    state.core[sc.K_GRAPH] = state.core[sc.K_DECODE_GRAPH]


@uncounted
def _list_rows(state, io, table):
    """Rows of the decode graph: the decoding seats, then padding. They run (again) now."""
    rows = 0
    for seat in range(state.config[sc.G_SEATS]):
        if decoding(state, seat):
            io.decode_rows[rows] = seat
            state.rows[rows] = seat
            rows += 1
    for row in range(rows, state.config[sc.G_SEATS]):
        io.decode_rows[row] = NO_SEAT
    _set_decoding(state, DECODE_PROCESSING)
    state.core[sc.K_DECODING] = rows
    state.core[sc.K_DECODE_GRAPH] = decode_graph(table, rows)
    state.core[sc.K_ROWS_STALE] = 0


@uncounted
def _set_decoding(state, status):
    for seat in range(state.config[sc.G_SEATS]):
        if decoding(state, seat):
            state.seats[seat * sc.SEAT_WORDS + sc.SE_STATE] = status


@uncounted
def _pack_runs(state, io):
    """Pack prefills, oldest first, as far as the largest graph has room. Returns the tokens."""
    seats, limit = state.seats, state.config[sc.G_PREFILL_TOKENS]
    runs, tokens = 0, 0
    while runs < state.config[sc.G_PREFILL_RUNS] and tokens < limit:
        seat = _oldest_unpacked(state)
        if seat == NO_SEAT:
            break
        here = seat * sc.SEAT_WORDS
        left = seats[here + sc.SE_TARGET] - seats[here + sc.SE_COMPUTED]
        chunk = min(left, limit - tokens)
        seats[here + sc.SE_RUN] = 1
        io.run_seat[runs] = seat
        io.run_start[runs] = tokens
        io.run_samples[runs] = 1 if chunk == left else 0
        tokens += chunk
        runs += 1
    io.run_start[runs] = tokens
    for run in range(runs, state.config[sc.G_PREFILL_RUNS]):
        io.run_seat[run] = NO_SEAT
        io.run_start[run + 1] = tokens
        io.run_samples[run] = 0
    for run in range(runs):
        seats[io.run_seat[run] * sc.SEAT_WORDS + sc.SE_RUN] = 0
    state.core[sc.K_IN_FLIGHT_ROWS] = runs
    return tokens


@uncounted
def _oldest_unpacked(state):
    best, best_ticket = NO_SEAT, 0
    for seat in range(state.config[sc.G_SEATS]):
        here = seat * sc.SEAT_WORDS
        if (
            state.seats[here + sc.SE_SLOT] == sc.NO_SLOT
            or state.seats[here + sc.SE_STATE] != PREFILL_PROCESSING
            or state.seats[here + sc.SE_RUN] != 0
        ):
            continue
        ticket = state.seats[here + sc.SE_TICKET]
        if best == NO_SEAT or ticket < best_ticket:
            best, best_ticket = seat, ticket
    return best


@uncounted
def stage_prefill(ring, state, io, table, lane, lanes):
    """Copy the planned runs' tokens into the step buffer and pad to the graph's size. All lanes."""
    runs = state.core[sc.K_IN_FLIGHT_ROWS]
    total = io.run_start[runs]
    for run in range(runs):
        _stage_run(ring, state, io, run, lane, lanes)
    for index in range(total + lane, table.shape[state.core[sc.K_GRAPH]], lanes):
        io.prefill_token[index] = 0
        io.prefill_position[index] = 0
        io.prefill_seat[index] = NO_SEAT


@uncounted
def _stage_run(ring, state, io, run, lane, lanes):
    """Copy a run's tokens: what is left of its prompt, then what it had generated."""
    seat, start, end = io.run_seat[run], io.run_start[run], io.run_start[run + 1]
    here = seat * sc.SEAT_WORDS
    computed = state.seats[here + sc.SE_COMPUTED]
    prompt_len, vocab = state.seats[here + sc.SE_PROMPT_LEN], state.config[sc.G_VOCAB_SIZE]
    prompt_end = min(max(start + prompt_len - computed, start), end)  # in the step's tokens
    source = state.seats[here + sc.SE_PROMPT_START] + computed - start
    bad = 0
    for index in range(start + lane, end, lanes):
        if index >= prompt_end:
            source = state.seats[here + sc.SE_OUTPUT_START] + computed - prompt_len - start
        token = ring.tokens[source + index]
        if token < 0 or token >= vocab:
            token = 0
            bad = 1
        io.prefill_token[index] = token
        io.prefill_position[index] = computed + index - start
        io.prefill_seat[index] = seat
    # whatever a front end wrote must not become an address in the engine
    if bad != 0 and compare_and_swap(state.seats, here + sc.SE_DOOM, R_NONE, R_REJECTED) == R_NONE:
        fetch_add(state.core, sc.K_DOOMED, 1)


@uncounted
def launch_planned(ring, state, io, table, launcher, now):
    """Launch the planned step; bounded retries, each with the graph's other executable. Lane 0."""
    core = state.core
    step, graph, kind = core[sc.K_STEP] + 1, core[sc.K_GRAPH], core[sc.K_PLAN]
    store_relaxed(io.control, TICKET, step)
    fence()  # all lanes' staging (they met at a barrier) before the graph reads it
    code = LAUNCHED
    for attempt in range(state.config[sc.G_LAUNCH_TRIES]):
        executable = EXECS * graph + (state.graph_turn[graph] + attempt) % EXECS
        code = launch(launcher, table, executable)
        if code == LAUNCHED:
            state.graph_turn[graph] += attempt + 1
            break
        core[sc.K_RETRIES] += 1
        record(ring.flight, core[sc.K_RECORDS], now, E_RETRY, executable, code, attempt, 0)
        core[sc.K_RECORDS] += 1
        pause(attempt)
    if code != LAUNCHED:
        core[sc.K_ERROR] = sc.ERROR_LAUNCH
        core[sc.K_ERROR_ARG] = code
        core[sc.K_VERDICT] = sc.FAULTED
        record(ring.flight, core[sc.K_RECORDS], now, E_FAULT, sc.ERROR_LAUNCH, code, 0, 0)
        core[sc.K_RECORDS] += 1
        return
    # where a turn polls for long, its own time is past by now
    launched = now if state.config[sc.G_POLL_SPINS] == 0 else now_ns()
    core[sc.K_STEP] = step
    core[sc.K_IN_FLIGHT] = kind
    core[sc.K_LAUNCHED_AT] = launched
    core[sc.K_WINDOW] += 1
    core[sc.K_LAUNCHES] += 1
    core[sc.K_VERDICT] = sc.STEPPED
    if kind == sc.PREFILL_STEP:
        core[sc.K_PREFILLS] += 1
        tokens = io.run_start[core[sc.K_IN_FLIGHT_ROWS]]
        rows = core[sc.K_IN_FLIGHT_ROWS]
        record(ring.flight, core[sc.K_RECORDS], now, E_PREFILL, step, tokens, rows, graph)
    else:
        core[sc.K_DECODES] += 1
        rows, late = core[sc.K_IN_FLIGHT_ROWS], launched - now
        record(ring.flight, core[sc.K_RECORDS], now, E_DECODE, step, rows, late, graph)
    core[sc.K_RECORDS] += 1

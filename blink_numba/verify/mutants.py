"""Planted bugs: each an edit of the real source, each to be killed by a named invariant.

A harness is worth what it catches. Every mutant is run on a pure-Python copy made from the
edited sources, by random walks first (most die within a second) and, if it survives those, by
exhaustive search.
"""

# ruff: noqa: E501 — edits quote the sources as they stand

from __future__ import annotations

import time
from dataclasses import dataclass, field

from blink_numba.verify.configurations import find
from blink_numba.verify.explore import Explorer
from blink_numba.verify.model import Model, fresh_copy
from blink_numba.verify.walk import random_chooser, walk

WALKS = 60


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes
    ----------
    edits : tuple of (module, old, new)
    setups : tuple of str
        Configurations that can show it.
    killers : tuple of str
        Invariants one of which must kill it.
    """

    name: str
    sentence: str
    edits: tuple[tuple[str, str, str], ...]
    setups: tuple[str, ...]
    killers: tuple[str, ...]


@dataclass
class Death:
    """How a mutant died, or that it lives."""

    mutant: Mutant
    invariant: str = ""
    detail: str = ""
    setup: str = ""
    walks: int = 0
    seed: int = -1
    seconds: float = 0.0
    trace: list[tuple[int, int]] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        """Whether one of the invariants named for it killed it."""
        return self.invariant in self.mutant.killers


def _mutant(name: str, sentence: str, module: str, old: str, new: str, setups: str, killers: str) -> Mutant:
    return Mutant(name, sentence, ((module, old, new),), tuple(setups.split()), tuple(killers.split()))


_GO_AHEAD = """    if runs_ahead(launcher):
        go_ahead(ring, state, io, table, launcher, now)
"""
_PUBLISH = """    publish_tokens(ring, state, io, lane, lanes)
    lane_barrier()
    if lane == 0:
        publish_logs(ring, state)
    lane_barrier()
    publish(ring, state, lane, lanes)
"""

MUTANTS: tuple[Mutant, ...] = (
    # --- ordering ---
    Mutant(
        "publish-before-payload", "The control word goes out before the token that it counts.",
        (("scheduler.publish", "        if state.seats[here + sc.SE_OUT_SLOT] != sc.NO_SLOT and "
          "state.seats[here + sc.SE_OUT_TOKEN] >= 0:\n            _publish_token(ring, state, io, here, entries, lanes)\n",
          "        _publish_outcome(ring, state, here)\n"),),
        ("reuse",), ("own-tokens", "log-covers-count"),
    ),
    Mutant(
        "log-head-last", "The log's head goes out after the control words that count its entries.",
        (("scheduler.turn", _PUBLISH, '''    publish_tokens(ring, state, io, lane, lanes)
    lane_barrier()
    publish(ring, state, lane, lanes)
    lane_barrier()
    if lane == 0:
        publish_logs(ring, state)
'''),), ("reuse",), ("log-covers-count",),
    ),
    _mutant("completed-relaxed", "COMPLETED is stored without a release.", "scheduler.publish",
            "store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, word)\n        seats[here + sc.SE_OUT_SLOT]",
            "store_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0, word)\n        seats[here + sc.SE_OUT_SLOT]",
            "reuse", "no-data-race"),
    _mutant("log-head-relaxed", "The log's head is stored without a release.", "scheduler.publish",
            "store_release(ring.fe_sched", "store_relaxed(ring.fe_sched", "reuse two-seats", "no-data-race"),
    _mutant("submit-relaxed", "The front end's words are stored without a release.", "rdma.shm",
            "store_release(ring, remote", "store_relaxed(ring, remote", "reuse", "no-data-race"),
    _mutant("claim-relaxed", "The claim reads `req` without an acquire.", "scheduler.claim",
            "load_acquire(ring.req, slot)", "load_relaxed(ring.req, slot)", "reuse", "no-data-race"),
    Mutant(
        "read-relaxed", "The front end reads without an acquire.",
        (("rdma.shm", "from ring.atomics import load_acquire", "from ring.atomics import load_relaxed"),
         ("rdma.shm", "load_acquire(ring, remote + word)", "load_relaxed(ring, remote + word)")),
        ("reuse",), ("no-data-race",),
    ),
    Mutant(
        "done-relaxed", "The scheduler reads DONE without an acquire.",
        (("scheduler.turn", "import lane_barrier, load_acquire_device", "import lane_barrier, load_relaxed"),
         ("scheduler.turn", "load_acquire_device(io.control, DONE)", "load_relaxed(io.control, DONE)")),
        ("reuse",), ("no-data-race",),
    ),
    Mutant(
        "launch-relaxed", "A launch orders nothing: no fence, no release.",
        (("graphs.launcher", "store_release(core, L_SENT", "store_relaxed(core, L_SENT"),
         ("scheduler.choose", "    fence()", "    pass")), ("reuse",), ("no-data-race",),
    ),
    _mutant("request-before-descriptor", "`req` is written before the descriptor.", "rdma.submit",
            "for piece in range(3):", "for piece in (1, 0, 2):", "reuse", "no-data-race own-tokens true-reason"),
    # --- claiming ---
    _mutant("incarnation-kept", "A claim keeps the old incarnation.", "scheduler.claim",
            "after = pack_ctl(incarnation,", "after = pack_ctl(ctl_incarnation(before),", "reuse", "legal-edges"),
    _mutant("claims-any-incarnation", "A claim does not look at the incarnation.", "scheduler.claim",
            "incarnation != next_incarnation(ctl_incarnation(before)) or ", "", "crash crash-two",
            "ends-once legal-edges"),
    _mutant("parity-forgotten", "The doorbell's level is not noted at the claim.", "scheduler.claim",
            "fetch_add(state.parity, word, mask if incarnation & 1 else -mask)", "pass", "reuse", "progress"),
    Mutant(
        "doorbell-toggled", "A doorbell bit is toggled instead of levelled.",
        (("rdma.submit", "bits | (1 << bit) if incarnation & 1 else bits & ~(1 << bit)", "bits ^ (1 << bit)"),
         ("rdma.attach", "doorbell[:] = (odd << np.arange(SLOTS_PER_DOORBELL)).sum(axis=1)",
          "batch.add(READ, share.doorbell, staging.doorbell, doorbell.shape[0])\n    transport.post(batch)\n"
          "    transport.complete()\n    batch.clear()")),
        ("crash", "crash-two"), ("progress",),
    ),
    _mutant("doorbell-edge", "The scan takes the doorbell word as seen, hit or not.", "scheduler.claim",
            "        hits = (load_relaxed(ring.doorbell, word) ^ load_relaxed(state.parity, word)) & _LOW_32\n",
            "        hits = (load_relaxed(ring.doorbell, word) ^ load_relaxed(state.parity, word)) & _LOW_32\n"
            "        store_relaxed(state.parity, word, load_relaxed(ring.doorbell, word))\n",
            "two-requests reuse", "progress legal-edges"),
    _mutant("cas-as-store", "A lane claims by a plain store.", "scheduler.claim",
            "if compare_and_swap(ring.ctl, slot * at.CTL_WORDS + at.W0, before, after) != before:\n"
            "        return False",
            "store_relaxed(ring.ctl, slot * at.CTL_WORDS + at.W0, after)", "two-lanes-one-slot",
            "no-data-race own-tokens one-owner ends-once legal-edges progress in-bounds own-words"),
    _mutant("descriptor-unchecked", "A descriptor is served whatever it says.", "scheduler.claim",
            "elif not _can_serve(ring, state, slot):", "elif False:", "rejected", "in-bounds own-words"),
    # --- cancel ---
    _mutant("cancel-as-submit", "A CANCEL found at the claim is served.", "scheduler.claim",
            "if req_command(request) == CANCEL and req_incarnation(request) == ctl_incarnation(word):",
            "if False:", "cancel", "ends-within-one-step true-reason"),
    _mutant("cancel-unseen", "A CANCEL of a live request is not looked at.", "scheduler.ending",
            "req_command(request) == CANCEL\n", "False\n", "cancel cancel-two", "ends-within-one-step"),
    _mutant("doom-kept-by-seat", "The next request on a seat inherits the doom of the last.", "scheduler.seats",
            "    seats[here + sc.SE_DOOM] = R_NONE\n    seats[here + sc.SE_REASON] = R_NONE\n",
            "    seats[here + sc.SE_REASON] = R_NONE\n", "cancel-again", "true-reason ends-within-one-step"),
    _mutant("doom-kept-by-slot", "The next incarnation of a slot inherits the doom of the last.", "scheduler.claim",
            "    slots[record_at + sc.SL_DOOM] = R_NONE\n", "", "cancel-waiting", "true-reason ends-within-one-step"),
    # --- seats and blocks ---
    _mutant("block-freed-twice", "One block too many is counted free.", "scheduler.blocks",
            "state.core[sc.K_BLOCKS_FREE] = free + count\n    state.seats",
            "state.core[sc.K_BLOCKS_FREE] = free + count + 1\n    state.seats", "reuse",
            "one-owner in-bounds no-leak"),
    _mutant("block-given-twice", "All first blocks of a request are the same.", "scheduler.blocks",
            "state.free_blocks[free - 1 - i]", "state.free_blocks[free - 1]", "preempt", "one-owner own-tokens"),
    _mutant("blocks-kept", "A request that ends keeps its blocks.", "scheduler.seats",
            "freed = free_blocks(state, io, seat)", "freed = 0", "reuse", "one-owner no-leak"),
    _mutant("seat-off-by-one", "The last seat is not published.", "scheduler.publish",
            "    seats = state.seats\n    for seat in range(lane, state.config[sc.G_SEATS], lanes):",
            "    seats = state.seats\n    for seat in range(lane, state.config[sc.G_SEATS] - 1, lanes):",
            "two-seats", "progress"),
    _mutant("seat-wrong-row", "A decode row names the seat after its own.", "scheduler.choose",
            "io.decode_rows[rows] = seat\n", "io.decode_rows[rows] = (seat + 1) % state.config[sc.G_SEATS]\n",
            "window", "own-tokens own-blocks one-owner in-bounds own-words progress"),
    _mutant("block-too-late", "A seat gets its next block one token late.", "scheduler.blocks",
            "state.seats[here + sc.SE_COMPUTED] < held", "state.seats[here + sc.SE_COMPUTED] <= held",
            "preempt", "own-blocks own-tokens"),
    _mutant("freed-unnoticed", "What a leaver frees wakes nobody.", "scheduler.seats",
            "    core[sc.K_TRY_ADMIT] = 1\n    return freed", "    return freed", "preempt two-requests", "progress"),
    # --- preemption ---
    _mutant("preempted-forgets", "A preempted request forgets its tokens.", "scheduler.seats",
            "    state.slots[record_at + sc.SL_GENERATED] = generated\n    state.slots[record_at + sc.SL_SEAT]",
            "    state.slots[record_at + sc.SL_GENERATED] = 0\n    state.slots[record_at + sc.SL_SEAT]",
            "preempt", "own-tokens"),
    _mutant("recompute-short", "A recompute leaves the last token out.", "scheduler.seats",
            "slots[record_at + sc.SL_PROMPT_LEN] + generated\n",
            "slots[record_at + sc.SL_PROMPT_LEN] + max(generated - 1, 0)\n", "preempt", "own-tokens"),
    _mutant("preempted-late", "A preempted request's words wait for the end of the turn.", "scheduler.seats",
            "    publish_seat(ring, state, io, seat)\n"
            "    word = pack_ctl(seats[here + sc.SE_INCARNATION], generated, R_NONE, DECODE_PAUSED)\n"
            "    store_release(ring.ctl, slot * at.CTL_WORDS + at.W0, word)\n",
            "    if seats[here + sc.SE_OUT_SLOT] == sc.NO_SLOT:\n"
            "        seats[here + sc.SE_OUT_SLOT] = slot\n"
            "        seats[here + sc.SE_OUT_TOKEN] = -1\n"
            "    seats[here + sc.SE_OUT_W0] = pack_ctl(\n"
            "        seats[here + sc.SE_INCARNATION], generated, R_NONE, DECODE_PAUSED)\n",
            "displace", "legal-edges"),
    # --- lanes ---
    _mutant("deaths-judged-early", "Lanes judge requests while another notes deaths and the stop word.",
            "scheduler.ending", "    lane_barrier()  # all lanes judge", "    # all lanes judge",
            "crash-lanes two-lanes", "no-data-race"),
    # --- log-probabilities ---
    _mutant("records-overwritten", "Two steps in a row write their records to one place.", "graphs.step_io",
            "((ticket & 1) * seats + seat)", "(seat + ticket * 0)", "logprobs logprobs-preempt", "no-data-race"),
    _mutant("records-of-the-next-step", "A token's record is looked for where the next step's goes.",
            "scheduler.collect", "state.core[sc.K_COLLECTED_STEP]", "state.core[sc.K_STEP]", "logprobs logprobs-preempt",
            "no-data-race own-tokens"),
    _mutant("record-misplaced", "A token's record goes to the next token's place.", "scheduler.collect",
            "2 * pairs * (generated - 1)", "2 * pairs * generated", "logprobs logprobs-preempt", "own-tokens own-words no-data-race"),
    # --- tokens ---
    _mutant("token-misplaced", "A token goes to the extent's next place.", "scheduler.collect",
            "seats[here + sc.SE_OUTPUT_START] + generated - 1", "seats[here + sc.SE_OUTPUT_START] + generated",
            "reuse", "own-tokens own-words"),
    _mutant("step-collected-twice", "A step stays in flight after its end.", "scheduler.turn",
            "    core[sc.K_IN_FLIGHT] = sc.NOTHING\n    if kind == sc.PREFILL_STEP:",
            "    if kind == sc.PREFILL_STEP:", "reuse two-seats",
            "own-tokens exec-idle in-bounds one-owner progress legal-edges own-words ends-once"),
    # --- windows and executables ---
    _mutant("window-reset-early", "Launches are not counted.", "scheduler.choose",
            "    core[sc.K_WINDOW] += 1\n", "", "window", "window"),
    Mutant(
        "exec-reused", "An executable is launched again at once, and nobody refuses.",
        (("scheduler.choose", "(state.graph_turn[graph] + attempt) % EXECS", "0"),
         ("graphs.launcher", "if load_acquire(launcher.running, executable * LINE) != 0:", "if False:")),
        ("window", "stop-token"), ("exec-idle",),
    ),
    _mutant("boundary-assumed", "A step counts as done as soon as it is launched.", "scheduler.turn",
            "        if done == core[sc.K_STEP]:\n", "        if done >= 0:\n", "reuse",
            "exec-idle no-data-race own-tokens"),
    # --- death ---
    _mutant("orphans-unsearched", "After a death nobody looks at `req` itself.", "scheduler.claim",
            "        if dying != 0 and state.front_ends[here + sc.FR_SEARCHED] != dying:",
            "        if False:", "crash crash-two", "drained-is-quiet quiet-successor"),
    Mutant(
        "drained-before-published", "Drained is said before the last control words are out.",
        (("scheduler.turn", _PUBLISH, '''    if lane == 0 and core[sc.K_DYING] != 0:
        finish_draining(ring, state, now)
''' + _PUBLISH),), ("crash", "crash-two"), ("drained-is-quiet", "quiet-successor"),
    ),
    _mutant("death-unseen", "The requests of a dead front end go on.", "scheduler.ending",
            "        return R_ABORTED\n", "        return R_NONE\n", "crash-lanes", "ends-within-one-step"),
    # --- the front end's reader ---
    _mutant("end-before-tokens", "The end is told when it is seen, tokens or not.", "rdma.reader",
            "                and usage >= ctl_tokens(word)\n", "", "reuse backwards two-seats",
            "release-after-read delivered-in-order"),
    _mutant("end-of-another", "The end of the incarnation before ends this one.", "rdma.reader",
            "                ctl_incarnation(word) == record[T_INCARNATION]\n                and ctl_state(word)",
            "                ctl_state(word)", "rejected cancel", "release-after-read delivered-in-order"),
    _mutant("log-read-twice", "The log's tail stays where it was.", "rdma.reader",
            "    marks[M_ACTIVE] = left\n    marks[M_TAIL] = marks[M_HEAD]\n", "    marks[M_ACTIVE] = left\n",
            "reuse", "delivered-in-order own-tokens"),
    _mutant("overrun-unseen", "A reader that was overrun believes what it read.", "rdma.reader",
            "if head_after - marks[M_TAIL] > entries - entries // 4:", "if False:", "overrun-fast",
            "delivered-in-order own-tokens"),
    _mutant("overrun-without-margin", "A reader forgets that the scheduler writes ahead of the head.", "rdma.reader",
            "> entries - entries // 4:", "> entries:", "overrun-one", "delivered-in-order own-tokens"),
    _mutant("stops-with-work-left", "The scheduler stops while requests are in service.", "scheduler.turn",
            "if core[sc.K_SEATED] == 0 and core[sc.K_WAITING] == 0 and core[sc.K_IN_FLIGHT] == sc.NOTHING:",
            "if core[sc.K_WAITING] == 0:",
            "drain stop", "progress no-leak"),
    # --- the step that goes on: launched at once, without a look at the batch ---
    _mutant("goes-on-past-an-end", "A batch goes on although one of it ended.", "scheduler.choose",
            "(core[sc.K_ENDED] | core[sc.K_STARVED]", "(core[sc.K_STARVED]", "reuse", "ends-once"),
    _mutant("goes-on-starved", "A batch goes on although one of it has no block.", "scheduler.choose",
            "core[sc.K_STARVED] | core[sc.K_FAULT]", "core[sc.K_FAULT]", "preempt", "own-blocks"),
    _mutant("goes-on-past-the-waiting", "A batch goes on although one that waits could join.", "scheduler.choose",
            "    if quiet and core[sc.K_WAITING] != 0:\n        quiet = not (may_try(state) or core[sc.K_DISPLACES] != 0)\n",
            "", "crowd", "work-conserving"),
    Mutant(
        "foresees-too-early", "What is to come is foreseen before this turn's claims are known.",
        (("scheduler.turn", "        take_tickets(ring, state, now)\n",
          "        foresee(state)\n        take_tickets(ring, state, now)\n"),
         ("scheduler.turn", "    if lane == 0:\n        foresee(state)\n", "    if lane == 0:\n")),
        ("crowd",), ("work-conserving",),
    ),
    _mutant("goes-on-cancelled", "A batch goes on although one of it is to end.", "scheduler.choose",
            "news = core[sc.K_DOOMED] | ", "news = ", "crash-lanes", "ends-within-one-step"),
    _mutant("goes-on-parked", "A batch goes on although the host asked for a park.", "scheduler.choose",
            " | core[sc.K_PARK]\n", "\n", "park", "heeds-the-host"),
    _mutant("goes-on-past-the-window", "A batch goes on although the window is full.", "scheduler.choose",
            "quiet = news == 0 and core[sc.K_WINDOW] < WINDOW", "quiet = news == 0", "window", "window"),
    _mutant("changes-beside-the-step", "The batch is changed although its next step was launched.", "scheduler.turn",
            "    if core[sc.K_GOES_ON] == 0:\n        _change", "    if True:\n        _change",
            "window two-seats", "no-data-race exec-idle"),
    _mutant("published-while-noted", "Lanes publish while others note what there is.", "scheduler.turn",
            "        note(state, io, core[sc.K_COLLECTED], lane, lanes)\n    lane_barrier()\n",
            "        note(state, io, core[sc.K_COLLECTED], lane, lanes)\n", "crowd-lanes", "no-data-race"),
    _mutant("ends-counted-plainly", "Two lanes count ends in one word without an atomic.", "scheduler.collect",
            "seats[here + sc.SE_REASON] = reason\n        fetch_add(state.core, sc.K_ENDED, 1)",
            "seats[here + sc.SE_REASON] = reason\n        state.core[sc.K_ENDED] += 1", "crowd-lanes", "no-data-race"),
    # --- the step launched ahead ---
    _mutant("ends-beside-the-step-behind", "An end is told while a step with the request in it still runs.",
            "scheduler.ahead", "elif core[sc.K_GOES_ON] != 0:", "elif False:", "ahead-stop ahead-two", "ends-once"),
    _mutant("leaves-beside-the-step-behind", "Who ended gives seat and blocks back though a step is behind.",
            "scheduler.ahead", "    core[sc.K_GOES_ON] = 1\n", "", "ahead-stop ahead-two",
            "no-data-race exec-idle ends-once one-owner own-tokens"),
    _mutant("thrown-away-row-counted", "The row of a request that ended counts as its next token.", "scheduler.ahead",
            "        if seats[here + sc.SE_REASON] != R_NONE:\n            continue", "        if False:\n            continue",
            "ahead-stop ahead-two", "own-tokens ends-once true-reason"),
    _mutant("fed-beside-the-step-behind", "A step's inputs are written while it may read them.", "scheduler.ahead",
            " and core[sc.K_AHEAD] == 0:\n", ":\n", "ahead ahead-two", "no-data-race own-tokens"),
    _mutant("late-tokens-overwritten", "Two steps in a row leave their tokens in one place.", "graphs.step_io",
            "return (ticket & 1) * seats + seat\n", "return seat + ticket * 0\n", "ahead ahead-two",
            "no-data-race own-tokens"),
    _mutant("late-end-unseen", "A step that was over before the one ahead of it was seen is waited for.",
            "scheduler.turn", "if runs_ahead(launcher) and done == core[sc.K_STEP] + core[sc.K_AHEAD]:", "if False:",
            "ahead ahead-stop", "progress"),
    _mutant("ahead-without-a-block", "A step is launched ahead of a seat's next block.", "scheduler.ahead",
            "return following >= ", "return following > ", "ahead-two", "own-blocks"),
    Mutant(
        "ahead-of-the-publishing", "A step goes ahead before what shares its half of the buffer is published.",
        (("scheduler.turn", "    publish_tokens(ring, state, io, lane, lanes)\n", _GO_AHEAD
          + "    publish_tokens(ring, state, io, lane, lanes)\n"),
         ("scheduler.turn", "    if lane == 0:\n    " + _GO_AHEAD.replace("\n    ", "\n        "), "    if lane == 0:\n")),
        ("ahead-logprobs",), ("no-data-race",),
    ),
    _mutant("ahead-though-parked", "A step is launched ahead whatever the host asked for.", "scheduler.ahead",
            "    if not goes_on(state) or not _all", "    if not _all", "ahead-park ahead-crowd",
            "heeds-the-host window ends-within-one-step work-conserving own-tokens"),
    # --- the waiting ---
    _mutant("leaver-unnoticed", "One that did not fit leaves the queue, and those behind it are not tried.",
            "scheduler.ending", "    state.core[sc.K_TRY_ADMIT] = 1  # it may", "    # it may", "cancel-queue",
            "work-conserving"),
    _mutant("doomed-passed-over", "Of two that wait and are to end, one is passed over.", "scheduler.ending",
            "        else:\n            index += 1", "        index += 1", "cancel-queue", "ends-within-one-step"),
)  # fmt: skip


def run_mutant(mutant: Mutant, *, walks: int = WALKS, exhaustive_s: float = 60.0) -> Death:
    """Try to kill a mutant."""
    began = time.monotonic()
    death = Death(mutant)
    edits: dict[str, list[tuple[str, str]]] = {}
    for module, old, new in mutant.edits:
        edits.setdefault(module, []).append((old, new))
    for name in mutant.setups:
        model = Model(find(name), fresh_copy(edits))
        for seed in range(walks):
            death.walks += 1
            outcome = walk(model, random_chooser(seed))
            if outcome.violation is not None:
                death.invariant, death.detail = outcome.violation.invariant, outcome.violation.detail
                death.setup, death.seed, death.trace = name, seed, outcome.trace
                break
        model.copy.close()
        if death.invariant:
            break
    if not death.invariant and exhaustive_s:
        for name in mutant.setups:
            model = Model(find(name), fresh_copy(edits))
            found = Explorer(model, deadline_s=exhaustive_s).run()
            model.copy.close()
            if found.violation is not None:
                death.invariant, death.detail = found.violation.invariant, found.violation.detail
                death.setup, death.trace = name, found.trace
                break
    death.seconds = time.monotonic() - began
    return death

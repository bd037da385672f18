"""The named configurations: small enough to exhaust, one for each danger."""

from __future__ import annotations

from dataclasses import replace

from blink_numba.verify.setup import DRAIN, PARK, STOP, Ask, Client, Setup

LAST_INCARNATION = (1 << 31) - 1

CONFIGURATIONS: dict[str, Setup] = {
    setup.name: setup
    for setup in (
        Setup(
            "reuse", "One front end, two requests one after the other in one slot.",
            (Client((Ask(1, 1), Ask(2, 2))),),
        ),
        Setup(
            "two-requests", "One front end, two requests at once, one seat.",
            (Client((Ask(1, 1), Ask(1, 2)), slots=2),),
        ),
        Setup(
            "two-seats", "One front end, a burst of two requests, two seats: pause and resume.",
            (Client((Ask(1, 2), Ask(1, 2)), slots=2, burst=True),), seats=2,
        ),
        Setup(
            "cancel", "One front end, two requests in one slot, the first cancelled at any moment.",
            (Client((Ask(1, 2, cancel=True), Ask(1, 1))),),
        ),
        Setup(
            "cancel-two", "One front end, two requests at once, each cancelled at any moment.",
            (Client((Ask(1, 2, cancel=True), Ask(1, 1, cancel=True)), slots=2),),
        ),
        Setup(
            "crash", "The front end dies before any of its accesses; its successor asks again.",
            (Client((Ask(1, 2, cancel=True),), crash=True, afterwards=(Ask(1, 1),)),),
        ),
        Setup(
            "crash-two", "A front end with two requests dies at any moment, beside another that lives.",
            (Client((Ask(1, 1), Ask(1, 1)), slots=2, burst=True, crash=True, afterwards=(Ask(1, 1),)),),
        ),
        Setup(
            "two-front-ends", "Two front ends, a request each, one seat.",
            (Client((Ask(1, 1),)), Client((Ask(1, 1),))),
        ),
        Setup(
            "two-lanes-one-slot", "Two scanner lanes that both look at every slot.",
            (Client((Ask(1, 1),)),), lanes=2, overlap=True,
        ),
        Setup(
            "two-lanes", "Two lanes, two front ends, two seats: all that lanes share.",
            (Client((Ask(1, 2),)), Client((Ask(1, 1),))), lanes=2, seats=2, preemption_bound=2,
        ),
        Setup(
            "two-front-ends-twice", "Two front ends, two requests each, up to two preemptions.",
            (Client((Ask(1, 1), Ask(1, 1))), Client((Ask(1, 1), Ask(1, 1)))), preemption_bound=2,
        ),
        Setup(
            "preempt", "Blocks for one and a half: the younger request is preempted and recomputed.",
            (Client((Ask(1, 3), Ask(1, 3)), slots=2, burst=True),), seats=2, blocks=5, block_size=1,
        ),
        Setup(
            "preempt-cancel", "A request that was preempted, or is about to be, is cancelled.",
            (Client((Ask(1, 3), Ask(1, 3, cancel=True)), slots=2, burst=True),),
            seats=2, blocks=5, block_size=1,
        ),
        Setup(
            "chunks", "A prompt longer than the prefill graph, beside a request that decodes.",
            (Client((Ask(1, 3), Ask(5, 1)), slots=2, burst=True),), seats=2, prefill_tokens=2,
        ),
        Setup(
            "window", "A window of two launches.",
            (Client((Ask(1, 4), Ask(1, 1)), slots=2),), seats=2, window=2,
        ),
        Setup(
            "overrun", "A token log of four entries: readers that lag go over to the extents.",
            (Client((Ask(1, 5), Ask(1, 2)), slots=1),), log_entries=4, short_log=True,
        ),
        Setup(
            "overrun-one", "The same with one request: the fifth token overwrites the first's entry.",
            (Client((Ask(1, 5),)),), log_entries=4, short_log=True,
        ),
        Setup(
            "stop-token", "An answer that a stop token ends.",
            (Client((Ask(1, 3, stops_at=2), Ask(1, 1))),),
        ),
        Setup(
            "logprobs", "A request that wants log-probabilities, then one that does not, in one slot.",
            (Client((Ask(1, 3, logprobs=True), Ask(1, 1))),),
        ),
        Setup(
            "logprobs-preempt", "Log-probabilities beside a request without, through preemption.",
            (Client((Ask(1, 3, logprobs=True), Ask(1, 2)), slots=2, burst=True),), seats=2, blocks=4,
            block_size=1,
        ),
        Setup(
            "deadline", "A deadline that passes at any moment, of a request in service or waiting.",
            (Client((Ask(1, 2, deadline=True), Ask(1, 1, deadline=True)), slots=2),),
        ),
        Setup(
            "rejected", "A descriptor that makes no sense, then one that does, in one slot.",
            (Client((Ask(1, 1, bad=True), Ask(1, 1))),),
        ),
        Setup(
            "drain", "The host asks for an orderly end at any moment.",
            (Client((Ask(1, 1), Ask(1, 1))),), stop=DRAIN,
        ),
        Setup(
            "stop", "The host asks for an end at once, at any moment.",
            (Client((Ask(1, 2), Ask(1, 1))),), stop=STOP,
        ),
        Setup(
            "park", "The host parks the scheduler at any moment, and runs it again.",
            (Client((Ask(1, 3),)),), stop=PARK,
        ),
        Setup(
            "wrap", "Incarnations wrap around.",
            (Client((Ask(1, 1), Ask(1, 1, cancel=True))),), first_incarnation=LAST_INCARNATION - 1,
        ),
        Setup(
            "backwards", "Reads bring their last word first.",
            (Client((Ask(1, 1), Ask(1, 2)), slots=2, backwards=True),),
        ),
        Setup(
            "restart", "The engine's process dies at any moment; another takes the ring over.",
            (Client((Ask(1, 2), Ask(1, 1)), slots=2),), restart=True,
        ),
        Setup(
            "restart-cancel", "The same while the request is cancelled.",
            (Client((Ask(1, 2, cancel=True), Ask(1, 1))),), restart=True,
        ),
        Setup(
            "records", "Placement on the device: records are scanned, doorbells ignored.",
            (Client((Ask(1, 1, cancel=True), Ask(1, 1))),), records_scanned=True,
        ),
        Setup(
            "ahead", "Decode steps are launched ahead; the answer ends by its length.",
            (Client((Ask(1, 4), Ask(1, 1))),), pipelined=True,
        ),
        Setup(
            "ahead-stop", "A stop token ends an answer whose next step has been launched.",
            (Client((Ask(1, 4, stops_at=2), Ask(1, 2))),), blocks=6, block_size=1, pipelined=True,
        ),
        Setup(
            "ahead-two", "The same beside a request that goes on, with few blocks.",
            (Client((Ask(1, 4, stops_at=2), Ask(1, 4)), slots=2, burst=True),),
            seats=2, blocks=7, block_size=1, pipelined=True,
        ),
        Setup(
            "ahead-cancel", "A request is cancelled at any moment, a step ahead or none.",
            (Client((Ask(1, 3, cancel=True), Ask(1, 1))),), pipelined=True,
        ),
        Setup(
            "ahead-logprobs", "Log-probabilities of steps launched ahead.",
            (Client((Ask(1, 4, logprobs=True),)),), pipelined=True,
        ),
        Setup(
            "ahead-park", "The host parks the scheduler while a step is ahead.",
            (Client((Ask(1, 4),)),), stop=PARK, pipelined=True,
        ),
    )
}  # fmt: skip

# those that continuous integration exhausts; the others take longer
IN_CI = (
    "two-requests", "cancel", "crash", "two-front-ends", "two-lanes-one-slot", "two-front-ends-twice",
    "reuse", "two-seats", "stop-token", "rejected", "wrap", "records", "drain", "stop",
    "logprobs", "ahead", "ahead-stop", "ahead-cancel",
)  # fmt: skip

# too large to exhaust: random walks only
LARGER: dict[str, Setup] = {
    setup.name: setup
    for setup in (
        Setup(
            "cancel-again", "Two requests in one slot, both cancelled at any moment.",
            (Client((Ask(1, 2, cancel=True), Ask(1, 3, cancel=True))),),
        ),
        Setup(
            "cancel-waiting", "Requests that wait are cancelled, and their slots used again.",
            (Client(tuple(Ask(1, 2, cancel=k % 2 == 1) for k in range(8)), slots=3),), log_entries=128,
        ),
        Setup(
            "crash-lanes", "A front end with requests on two seats dies, seen by two lanes.",
            (Client((Ask(1, 3), Ask(1, 3)), slots=2, burst=True, crash=True, afterwards=(Ask(1, 2),)),),
            lanes=2, seats=2,
        ),
        Setup(
            "preempt-at-once", "Requests whose first token is out find no block for the next.",
            (Client(tuple(Ask(1, 3) for _ in range(6)), slots=3, burst=True),),
            seats=3, blocks=7, block_size=1,
            prefill_sequences=3, prefill_tokens=3, log_entries=128,
        ),
        Setup(
            "displace", "A policy that preempts at once: seats change hands, first tokens just out.",
            (Client(tuple(Ask(1, n) for n in (5, 4, 1, 3, 2, 1, 4)), slots=3),),
            seats=2, blocks=9, block_size=1,
            prefill_sequences=2, log_entries=128, policy="srpt",
        ),
        Setup(
            "restart-crash", "Front end and engine process both die, in any order.",
            (
                Client(tuple(Ask(1, 1 + k % 3) for k in range(4)), slots=2, burst=True, crash=True,
                       afterwards=(Ask(1, 2), Ask(1, 1))),
            ), seats=2, log_entries=128, restart=True,
        ),
        Setup(
            "cancel-queue", "The next in line, too large for what is free, are cancelled.",
            (
                Client((Ask(1, 6), Ask(5, 2, cancel=True), Ask(5, 1, cancel=True), Ask(1, 1)), slots=4,
                       burst=True),
            ),
            seats=2, blocks=7, block_size=1, prefill_tokens=5,
        ),
        Setup(
            "overrun-fast", "A token log of four entries and an answer of seven tokens.",
            (Client((Ask(1, 7),)),), log_entries=4, short_log=True,
        ),
        Setup(
            "crowd", "Two front ends, four slots each, three seats, few blocks, cancels.",
            (
                Client(tuple(Ask(1 + k % 3, 1 + k % 4, cancel=k % 3 == 0) for k in range(8)), slots=4,
                       burst=True),
                Client(tuple(Ask(1 + k % 2, 4 - k % 4) for k in range(8)), slots=3),
            ), seats=3, blocks=9, block_size=2, prefill_sequences=2, window=5, log_entries=128,
        ),
        Setup(
            "ahead-crowd", "A crowd whose decode steps are launched ahead: stop tokens, cancels, a death.",
            (
                Client(tuple(Ask(1 + k % 3, 4, cancel=k % 3 == 0, stops_at=2 * (k % 2)) for k in range(6)),
                       slots=3, burst=True, crash=True, afterwards=(Ask(2, 3), Ask(1, 4, stops_at=3))),
                Client(tuple(Ask(1 + k % 2, 4 - k % 3) for k in range(6)), slots=3),
            ), seats=3, blocks=10, block_size=2, prefill_sequences=2, window=5, log_entries=128,
            pipelined=True,
        ),
        Setup(
            "crowd-lanes", "The same with three lanes and death.",
            (
                Client(tuple(Ask(1 + k % 3, 1 + k % 4, cancel=k % 3 == 0) for k in range(5)), slots=3,
                       burst=True, crash=True, afterwards=(Ask(2, 3), Ask(1, 1))),
                Client(tuple(Ask(1 + k % 2, 4 - k % 4) for k in range(5)), slots=3),
            ), seats=3, blocks=9, block_size=2, prefill_sequences=2, window=5, lanes=3,
            log_entries=128,
        ),
    )
}  # fmt: skip


def find(name: str) -> Setup:
    """A configuration by its name.

    Raises
    ------
    KeyError
        There is none of this name; the message lists them.
    """
    try:
        return CONFIGURATIONS[name] if name in CONFIGURATIONS else LARGER[name]
    except KeyError:
        known = ", ".join([*CONFIGURATIONS, *LARGER])
        raise KeyError(f"no configuration {name!r}; there are {known}") from None


def with_variant(setup: Setup, **changes: object) -> Setup:
    """A configuration with something changed, such as its policy."""
    return replace(setup, **changes)  # type: ignore[arg-type]

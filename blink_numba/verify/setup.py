"""What a configuration of the model consists of."""

from __future__ import annotations

from dataclasses import dataclass

RUN, DRAIN, STOP, PARK = range(4)


@dataclass(frozen=True)
class Ask:
    """A request of the model.

    Attributes
    ----------
    prompt : int
        Tokens of its prompt; which ones follows from slot and incarnation.
    tokens : int
        max_tokens of its answer.
    stops_at : int
        The answer ends with its token of this number, a stop token; 0: it has none.
    cancel : bool
        Whether the front end may cancel it, at any moment.
    deadline : bool
        Whether it has a deadline, which passes at any moment.
    bad : bool
        Whether its descriptor makes no sense.
    priority : int
        For the policy.
    logprobs : bool
        Whether it wants the log-probabilities of its tokens, with one alternative.
    """

    prompt: int = 1
    tokens: int = 1
    stops_at: int = 0
    cancel: bool = False
    deadline: bool = False
    bad: bool = False
    priority: int = 0
    logprobs: bool = False


@dataclass(frozen=True)
class Client:
    """A front end of the model: what it asks, one request after the other.

    Attributes
    ----------
    slots : int
        Slots it uses; fewer than requests means that slots are used again.
    burst : bool
        Whether requests for which there are slots are submitted as one chain.
    crash : bool
        Whether it may die, before any of its accesses; its successor then asks `afterwards`.
    backwards : bool
        Whether its reads bring their last word first (words of one read have no order).
    """

    asks: tuple[Ask, ...]
    slots: int = 1
    burst: bool = False
    crash: bool = False
    afterwards: tuple[Ask, ...] = ()
    backwards: bool = False


@dataclass(frozen=True)
class Setup:
    """A configuration: who acts, on how much memory.

    Attributes
    ----------
    name, sentence : str
    clients : tuple of Client
    lanes : int
        Lanes of the scheduler. With `overlap` each of them scans all slots.
    seats, blocks, block_size : int
    prefill_tokens, prefill_sequences : int
        Of the one prefill graph.
    window : int
        Launches of a window.
    log_entries : int
        With `short_log` the log may be overrun, so its entries may be read while written.
    stop : int
        DRAIN, STOP or PARK: the host asks for it at any moment; once parked, it runs it again.
    first_incarnation : int
        What the slots' incarnations are at the start.
    preemption_bound : int, optional
        Search only executions with at most so many switches away from an actor that could go on.
    policy : str
        Name of a shipped policy.
    restart : bool
        Whether the engine's process, scheduler and engine, may die before any of the scheduler's
        accesses; another then takes the ring over.
    pipelined : bool
        Whether decode steps are launched ahead (`scheduler.ahead`).
    """

    name: str
    sentence: str
    clients: tuple[Client, ...]
    lanes: int = 1
    overlap: bool = False
    seats: int = 1
    blocks: int = 4
    block_size: int = 4
    prefill_tokens: int = 4
    prefill_sequences: int = 1
    window: int = 120
    log_entries: int = 16
    short_log: bool = False
    stop: int = RUN
    first_incarnation: int = 0
    preemption_bound: int | None = None
    policy: str = "fcfs"
    records_scanned: bool = False
    restart: bool = False
    pipelined: bool = False

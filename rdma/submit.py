"""From requests to words in the ring, in the order of the protocol, a burst as one chain.

The order is what makes a half-written submission harmless: prompt tokens and descriptor
first, then `req` = SUBMIT (a release: whoever acquires it sees both), then the doorbell
(a hint where to look). A crash in between leaves a slot that the scheduler either never sees
or ends when it drains this front end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rdma.arena import TOKENS_PER_LINE, Arena
from rdma.errors import ArenaFull, BadParameter, PromptTooLong, RingFull, SubmitError
from rdma.operations import PUBLISH, REMOTE, WORDS, WRITE, Operations, append
from rdma.slots import SlotTracker
from rdma.staging import Share, Staging
from rdma.transport import Transport
from ring import layout as at
from ring.jit import njit
from ring.words import SLOTS_PER_DOORBELL, SUBMIT, pack_req

WORD_LIMIT = 1 << 62  # words keep bit 63 clear
BURST = 512  # requests of one chain

# a row of the plan of a burst
B_SLOT, B_REMOTE, B_LOCAL, B_WORDS = range(4)


@dataclass(frozen=True, slots=True)
class Request:
    """What a front end asks of the scheduler.

    Attributes
    ----------
    prompt : int32[n]
        Token ids.
    max_tokens, min_tokens : int
        Bounds of the answer. `max_tokens` is cut to what the model's length leaves.
    temperature, top_p, top_k : float, float, int
        0 is greedy; 1.0 is off; 0 is off.
    seed : int
        Of this request's random numbers, 0 … 2**62-1.
    ignore_eos : bool
    stop_ids : tuple of int
        Ids, besides the model's own, that end the answer; at most 16.
    deadline_s : float, optional
        From the claim to the end of the answer, in seconds.
    priority, tenant : int
        For the scheduler's policy; not negative.
    logprobs : int, optional
        Log-probability of each token of the answer, and of so many likeliest ones beside it.
    """

    prompt: np.ndarray
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    deadline_s: float | None = None
    priority: int = 0
    tenant: int = 0
    logprobs: int | None = None


def check_request(request: Request, max_model_len: int, vocab_size: int) -> np.ndarray:
    """The prompt as int32 after checking every field; raises `SubmitError`'s subclasses."""
    prompt = np.asarray(request.prompt)
    if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
        raise BadParameter("prompt", f"must be a row of token ids, got {prompt.dtype}{prompt.shape}")
    if prompt.shape[0] < 1:
        raise BadParameter("prompt", "is empty: an answer needs at least one token before it")
    if prompt.shape[0] >= max_model_len:
        raise PromptTooLong(
            f"the prompt has {prompt.shape[0]} tokens and the model's length is {max_model_len}: "
            "shorten the prompt so that an answer fits"
        )
    if int(prompt.min()) < 0 or int(prompt.max()) >= vocab_size:
        raise BadParameter("prompt", f"token ids must be 0 to {vocab_size - 1}")
    _check_bounds("max_tokens", request.max_tokens, 1, WORD_LIMIT)
    _check_bounds("min_tokens", request.min_tokens, 0, request.max_tokens + 1)
    _check_bounds("top_k", request.top_k, 0, WORD_LIMIT)
    _check_bounds("seed", request.seed, 0, WORD_LIMIT)
    _check_bounds("priority", request.priority, 0, WORD_LIMIT)
    _check_bounds("tenant", request.tenant, 0, WORD_LIMIT)
    if request.logprobs is not None:
        _check_bounds("logprobs", request.logprobs, 0, min(at.MAX_LOGPROBS, vocab_size) + 1)
    if not 0.0 <= request.temperature < 1e6:
        raise BadParameter("temperature", f"must be 0 or more, got {request.temperature}")
    if not 0.0 < request.top_p <= 1.0:
        raise BadParameter("top_p", f"must be above 0 and at most 1, got {request.top_p}")
    if request.deadline_s is not None and not 0.0 < request.deadline_s < math.inf:
        raise BadParameter("deadline_s", f"must be above 0, got {request.deadline_s}")
    if len(request.stop_ids) > at.MAX_STOP_IDS:
        raise BadParameter("stop_ids", f"at most {at.MAX_STOP_IDS}, got {len(request.stop_ids)}")
    for token in request.stop_ids:
        _check_bounds("stop_ids", token, 0, vocab_size)
    return prompt


def _check_bounds(name: str, value: int, low: int, end: int) -> None:
    if not isinstance(value, int | np.integer) or not low <= value < end:
        raise BadParameter(name, f"must be a whole number from {low} to {end - 1}, got {value!r}")


@dataclass(slots=True)
class Placed:
    """A request that has its slot and extents.

    Attributes
    ----------
    pairs, records_start : int
        Pairs a token of its log-probabilities (0: it wants none), and where they go.
    """

    slot: int
    incarnation: int
    output_start: int
    max_tokens: int
    pairs: int
    records_start: int
    extents: tuple[int, ...]


@njit
def plan_burst(table, rows, burst, count, request_words, staged_words):
    """Append the rows that write a burst: prompts, then descriptors, then `req`, then doorbells.

    Parameters
    ----------
    table : int64[n, 4]
        With room for ``4 * count`` rows after the first `rows`.
    burst : int64[n, 4]
        Slot, first ring word, first staging word and words of each prompt.
    request_words, staged_words : int64[3]
        First word of descriptors, `req` and doorbells in the ring and in the staging memory.

    Returns
    -------
    int
        Rows now in the table.
    """
    for k in range(count):
        rows = append(table, rows, WRITE, burst[k, B_REMOTE], burst[k, B_LOCAL], burst[k, B_WORDS])
    for piece in range(3):
        kind = WRITE if piece == 0 else PUBLISH
        width = at.DESCRIPTOR_WORDS if piece == 0 else 1
        first = rows
        for k in range(count):
            index = burst[k, B_SLOT]
            if piece == 2:
                index //= SLOTS_PER_DOORBELL
            remote = request_words[piece] + index * width
            local = staged_words[piece] + index * width
            if rows > first:
                end = table[rows - 1, REMOTE] + table[rows - 1, WORDS]
                if end == remote:
                    table[rows - 1, WORDS] += width
                    continue
                if table[rows - 1, REMOTE] <= remote < end:  # a doorbell word that is there already
                    continue
            rows = append(table, rows, kind, remote, local, width)
    return rows


class Submitter:
    """Writes requests into the slots of one front end.

    Parameters
    ----------
    transport, share, staging, slots, arena
        The front end's; shared with its reader.
    """

    def __init__(
        self, transport: Transport, share: Share, staging: Staging, slots: SlotTracker, arena: Arena
    ) -> None:
        self._transport = transport
        self._share = share
        self._staging = staging
        self._slots = slots
        self._arena = arena
        self._batch = Operations(4 * BURST + 2 * share.slots)
        self._burst = np.zeros((BURST, 4), np.int64)
        self._ring_words = np.array([share.descriptor, share.req, share.doorbell], np.int64)
        self._staged_words = np.array([staging.descriptor, staging.req, staging.doorbell], np.int64)
        self._descriptors = staging.view("descriptor").reshape(share.slots, at.DESCRIPTOR_WORDS)
        self._req = staging.view("req")
        self._doorbell = staging.view("doorbell")

    def place(
        self, requests: Sequence[Request], track: Callable[[Placed], None], before: Operations
    ) -> list[Placed | SubmitError]:
        """Submit requests; for each its place, or why it was refused.

        `track` is told of a request before it is written; the rows of `before` go first.
        Everything that fits one chain is posted as one; the call returns when the last chain
        is posted, not when it is done.
        """
        # Before staged words are written again, the posts that read them must be done.
        self._transport.complete()
        self._batch.take(before)
        outcome: list[Placed | SubmitError] = []
        slots = self._slots.find(len(requests))
        taken = staged = count = 0
        room = self._staging.prompt_room()
        for request in requests:
            try:
                prompt = check_request(request, self._share.ring.max_model_len, self._share.ring.vocab_size)
                words = (prompt.shape[0] + 1) // 2
                if count == BURST or staged + words > room:
                    self._send(count)
                    self._transport.complete()
                    staged = count = 0
                if taken == len(slots):
                    raise RingFull(
                        f"all {self._share.slots} slots of front end {self._share.front_end} are in use: "
                        "try again when an answer has ended, or make the ring larger"
                    )
                local = self._staging.prompts + staged
                placed = self._stage(request, prompt, slots[taken], count, local)
            except SubmitError as error:
                outcome.append(error)
            else:
                track(placed)
                outcome.append(placed)
                taken += 1
                staged += words
                count += 1
        self._send(count)
        return outcome

    def _stage(self, request: Request, prompt: np.ndarray, slot: int, row: int, local: int) -> Placed:
        length = prompt.shape[0]
        max_tokens = min(int(request.max_tokens), self._share.ring.max_model_len - length)
        pairs = 0 if request.logprobs is None else 1 + request.logprobs
        prompt_start, output_start, records_start, extents = self._reserve(length, max_tokens, pairs)
        incarnation = self._slots.take(slot)
        self._staging.narrow[2 * local : 2 * local + length] = prompt
        stops = request.stop_ids
        self._descriptors[slot, : at.Q_STOP_0 + len(stops)] = (
            prompt_start,
            length,
            output_start,
            max_tokens,
            min(request.min_tokens, max_tokens),
            at.NO_DEADLINE if request.deadline_s is None else max(int(request.deadline_s * 1e9), 1),
            round(request.temperature * at.MICRO),
            max(round(request.top_p * at.MICRO), 1),
            request.top_k,
            request.seed,
            at.FLAG_IGNORE_EOS if request.ignore_eos else 0,
            request.priority,
            request.tenant,
            pairs,
            records_start,
            len(stops),
            *stops,
        )
        self._req[slot] = pack_req(incarnation, SUBMIT)
        self._ring_bell(slot, incarnation)
        self._burst[row] = (slot, self._share.arena + prompt_start // 2, local, (length + 1) // 2)
        return Placed(slot, incarnation, output_start, max_tokens, pairs, records_start, extents)

    def _reserve(self, prompt: int, answer: int, pairs: int) -> tuple[int, int, int, tuple[int, ...]]:
        """Where prompt, answer and log-probabilities go, and the extents that these are in."""
        records = 2 * pairs * answer
        most = self._share.arena_tokens - 3 * TOKENS_PER_LINE
        if records and prompt + answer + records > most:
            raise BadParameter(
                "logprobs",
                f"{pairs} log-probabilities for each of {answer} tokens do not fit this front end's share of "
                f"the arena ({most} tokens): ask for fewer, for fewer max_tokens, or make the arena larger",
            )
        aligned = -(-prompt // TOKENS_PER_LINE) * TOKENS_PER_LINE
        # One extent for prompt and answer where it fits, else two.
        for sizes in ((aligned + answer,), (prompt, answer)):
            extents = self._allocate((*sizes, records) if records else sizes)
            if extents is not None:
                output = extents[0] + aligned if len(sizes) == 1 else extents[1]
                return extents[0], output, extents[-1] if records else 0, extents
        wanted = f"{prompt} + {answer} tokens" + (f" and {records} of log-probabilities" if records else "")
        raise ArenaFull(
            f"no room for {wanted} in the {self._share.arena_tokens} of front end "
            f"{self._share.front_end}: ask for fewer max_tokens, try again when an answer has ended, "
            "or make the arena larger"
        )

    def _allocate(self, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
        """An extent of each size, or none at all."""
        extents: list[int] = []
        for size in sizes:
            extent = self._arena.allocate(size)
            if extent is None:
                for taken in extents:
                    self._arena.release(taken)
                return None
            extents.append(extent)
        return tuple(extents)

    def _ring_bell(self, slot: int, incarnation: int) -> None:
        word, bit = divmod(slot, SLOTS_PER_DOORBELL)
        bits = int(self._doorbell[word])
        self._doorbell[word] = bits | (1 << bit) if incarnation & 1 else bits & ~(1 << bit)

    def _send(self, count: int) -> None:
        batch = self._batch
        batch.count = plan_burst(
            batch.table, batch.count, self._burst, count, self._ring_words, self._staged_words
        )
        self._transport.post(batch)
        batch.clear()

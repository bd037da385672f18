"""An engine that answers at once: what is left of a request's time is the front end's.

It speaks the scheduler's side of the slot protocol (front end 0, doorbell scan) and echoes
each prompt over and over, one token a live request and step. ``python -m
blink_numba.bench.instant NAME`` runs it beside a ring of its own until standard input ends.
"""

from __future__ import annotations

import sys
import threading
import time

import numpy as np

from ring import layout as at
from ring.atomics import load_acquire, load_relaxed, now_ns, pause, store_relaxed, store_release
from ring.jit import njit
from ring.layout import DESCRIPTOR_WORDS, RingGeometry
from ring.memory import RingMemory
from ring.states import (
    DECODE_COMPLETED,
    DECODE_PROCESSING,
    R_CANCELLED,
    R_LENGTH,
    R_NONE,
    R_STOP,
)
from ring.words import (
    CANCEL,
    RELEASE,
    SLOTS_PER_DOORBELL,
    ctl_incarnation,
    next_incarnation,
    pack_ctl,
    pack_log,
    req_command,
    req_incarnation,
)

# columns of the table of live requests
_INCARNATION, _DONE, _LIVE = 0, 1, 2


@njit
def _claim(ring, live, parity):
    """Take every request that was submitted since the last look."""
    for word in range(ring.doorbell.shape[0]):
        hits = (load_relaxed(ring.doorbell, word) ^ parity[word]) & 0xFFFFFFFF
        if hits == 0:
            continue
        for bit in range(SLOTS_PER_DOORBELL):
            if (hits >> bit) & 1 == 0:
                continue
            slot = word * SLOTS_PER_DOORBELL + bit
            request = load_acquire(ring.req, slot)  # pairs with the submitter's release of req
            incarnation = req_incarnation(request)
            if incarnation != next_incarnation(live[slot, _INCARNATION]) or req_command(request) == RELEASE:
                continue
            parity[word] ^= 1 << bit
            live[slot, _INCARNATION] = incarnation
            live[slot, _DONE] = 0
            live[slot, _LIVE] = 1


@njit
def _ends(ring, slot, token, done, eos):
    """Reason for which a request ends with this token, R_NONE for none."""
    at_descriptor = slot * DESCRIPTOR_WORDS
    descriptor = ring.descriptor[at_descriptor : at_descriptor + DESCRIPTOR_WORDS]
    if done >= descriptor[at.Q_MIN_TOKENS]:
        if descriptor[at.Q_FLAGS] & at.FLAG_IGNORE_EOS == 0:
            for k in range(eos.shape[0]):
                if token == eos[k]:
                    return R_STOP
        for k in range(descriptor[at.Q_STOP_COUNT]):
            if token == descriptor[at.Q_STOP_0 + k]:
                return R_STOP
    return R_LENGTH if done >= descriptor[at.Q_MAX_TOKENS] else R_NONE


@njit
def _write_record(ring, descriptor, done, token):
    """Made-up log-probabilities of an answer's token number `done`: of its own id, and of those after it."""
    pairs = ring.descriptor[descriptor + at.Q_LOGPROBS]
    to = ring.descriptor[descriptor + at.Q_LOGPROBS_START] + 2 * pairs * done
    vocab = ring.info[at.I_VOCAB_SIZE]
    for k in range(pairs):
        surprise = np.float32(0.125 * (token % 31 if k == 0 else k))
        ring.tokens[to + 2 * k] = 1 + token % 31 if k == 0 else (token + 37 * k) % vocab
        ring.tokens[to + 2 * k + 1] = surprise.view(np.int32)


@njit
def _step(ring, live, head, eos):
    """One token for each live request; the new head of the log."""
    entries = ring.log.shape[0]
    first = head
    for slot in range(live.shape[0]):
        if live[slot, _LIVE] == 0:
            continue
        at_descriptor = slot * DESCRIPTOR_WORDS
        incarnation, done = live[slot, _INCARNATION], live[slot, _DONE]
        if req_command(load_relaxed(ring.req, slot)) != CANCEL:
            prompt = ring.descriptor[at_descriptor + at.Q_PROMPT_START]
            length = ring.descriptor[at_descriptor + at.Q_PROMPT_LEN]
            token = ring.tokens[prompt + done % length]
            ring.tokens[ring.descriptor[at_descriptor + at.Q_OUTPUT_START] + done] = token
            if ring.descriptor[at_descriptor + at.Q_LOGPROBS] != 0:
                _write_record(ring, at_descriptor, done, token)
            store_relaxed(ring.log, head % entries, pack_log(slot, incarnation, token))
            head += 1
            live[slot, _DONE] = done + 1
    if head != first:
        store_release(ring.fe_sched, at.D_LOG_HEAD, head)  # pairs with the reader's acquire of the head
    for slot in range(live.shape[0]):
        if live[slot, _LIVE] == 0:
            continue
        incarnation, done = live[slot, _INCARNATION], live[slot, _DONE]
        reason = R_CANCELLED
        if req_command(load_relaxed(ring.req, slot)) != CANCEL:
            last = ring.tokens[ring.descriptor[slot * DESCRIPTOR_WORDS + at.Q_OUTPUT_START] + done - 1]
            reason = _ends(ring, slot, last, done, eos)
        state = DECODE_PROCESSING if reason == R_NONE else DECODE_COMPLETED
        live[slot, _LIVE] = 1 if reason == R_NONE else 0
        # pairs with the reader's acquire: the tokens that the word counts are there
        store_release(ring.ctl, slot * at.CTL_WORDS, pack_ctl(incarnation, done, reason, state))
    return head


@njit
def _serve(ring, eos, step_ns):
    """Answer until COMMAND says stop; heartbeat with every turn."""
    live = np.zeros((ring.req.shape[0], 3), np.int64)
    parity = np.zeros(ring.doorbell.shape[0], np.int64)
    for slot in range(live.shape[0]):
        live[slot, _INCARNATION] = ctl_incarnation(load_acquire(ring.ctl, slot * at.CTL_WORDS))
        if live[slot, _INCARNATION] & 1:
            parity[slot // SLOTS_PER_DOORBELL] |= 1 << (slot % SLOTS_PER_DOORBELL)
    head = load_acquire(ring.fe_sched, at.D_LOG_HEAD)
    beats, spins, due = 0, 0, now_ns()
    store_relaxed(ring.status, at.S_PHASE, at.PHASE_RUNNING)
    while load_relaxed(ring.command, at.C_STOP) == at.RUN:
        beats += 1
        store_relaxed(ring.status, at.S_HEARTBEAT, beats)
        _claim(ring, live, parity)
        fence = load_acquire(ring.fe_fence, at.F_FENCE)
        if fence != load_relaxed(ring.fe_sched, at.D_DRAINED):
            live[:, _LIVE] = 0
            for slot in range(live.shape[0]):
                word = pack_ctl(live[slot, _INCARNATION], 0, R_CANCELLED, DECODE_COMPLETED)
                store_release(ring.ctl, slot * at.CTL_WORDS, word)
            store_release(ring.fe_sched, at.D_DRAINED, fence)  # pairs with the successor's acquire
        before = head
        if now_ns() >= due:
            due = now_ns() + step_ns
            head = _step(ring, live, head, eos)
        spins = 0 if head != before else spins + 1
        # Without a step time it never sleeps: nothing of a request's time shall be its own.
        pause(spins if step_ns > 0 else 0)
    store_relaxed(ring.status, at.S_PHASE, at.PHASE_STOPPED)


class InstantEngine:
    """Runs the loop on a thread of this process, with a ring of its own. A context manager.

    Parameters
    ----------
    name : str
        Of the ring.
    slots : int
    max_model_len, vocab_size : int
    eos_ids : tuple of int
    step_ns : int
        Time of a step: each live request gets one token a step.
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int = 1024,
        max_model_len: int = 4096,
        vocab_size: int = 1 << 17,
        eos_ids: tuple[int, ...] = (),
        step_ns: int = 0,
        arena_tokens: int = 4 << 20,
    ) -> None:
        geometry = RingGeometry(slots=slots, arena_tokens=arena_tokens)
        self.ring_name = name
        self.memory = RingMemory.create(name, geometry, max_model_len=max_model_len, vocab_size=vocab_size)
        self._eos = np.array(eos_ids, np.int64)
        self._step_ns = step_ns
        self._thread = threading.Thread(target=self._run, name="instant engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _serve(self.memory.view, self._eos, self._step_ns)

    def wait_ready(self, deadline_s: float = 60.0) -> None:
        """Until the loop runs (it may have to be compiled first)."""
        give_up = time.monotonic() + deadline_s
        while self.memory.view.status[at.S_PHASE] != at.PHASE_RUNNING:
            if time.monotonic() >= give_up:
                raise TimeoutError(f"the instant engine did not start within {deadline_s:g} s")
            time.sleep(0.01)

    def stop(self, deadline_s: float = 10.0) -> None:
        """End the loop and remove the ring."""
        self.memory.view.command[at.C_STOP] = at.STOP
        self._thread.join(deadline_s)
        self.memory.close()

    def __enter__(self) -> InstantEngine:
        self.wait_ready()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def main() -> None:
    """Serve the ring named by the first argument; the second is the time of a step in µs."""
    name, step_us = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    with InstantEngine(name, step_ns=int(step_us * 1e3)):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

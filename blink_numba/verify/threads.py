"""The protocol on real threads and processes: compiled scheduler, engine thread, several front ends.

A model checker sees every interleaving of a few requests; this sees a few interleavings of
millions of transitions, compiled, with real memory. Each front end is a process with the real
port that checks the history of its own requests; one of them is killed on the way and its
successor takes its place. In the end the books must be empty.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numba import boolean, int64

from graphs.ahead import hand_on, release_ahead
from graphs.grid import DECODE, EXECS, make_table, shapes, table_view
from graphs.launcher import engine_stopped, launcher_view, make_launcher, peek, retire, stop_engine
from graphs.step_io import DONE, FAULT, TICKET, EngineSpec, format_step, step_view, step_words
from rdma.port import FrontEndPort
from rdma.shm import ShmTransport
from rdma.submit import Request
from ring import layout as at
from ring.atomics import pause, store_release
from ring.jit import njit
from ring.layout import RingGeometry
from ring.memory import RingMemory
from ring.states import EMPTY, Reason, slot_state
from scheduler import state as sc
from scheduler.build import CpuLoop
from scheduler.policy import FCFS

TRANSITIONS, LONG_TRANSITIONS = 2_000_000, 20_000_000
VOCAB = 1000
SEATS, BLOCKS, BLOCK_SIZE, MAX_LEN = 24, 160, 8, 128
FRONT_ENDS, SLOTS = 2, 64
LONGEST_ANSWER = 80
DEADLINE_S = 1800.0

SPEC = EngineSpec(
    seats=SEATS, decode_batches=(1, 4, 8, 16, 24), prefill_tokens=(16, 64), prefill_sequences=8,
    block_size=BLOCK_SIZE, blocks=BLOCKS, blocks_per_seat=MAX_LEN // BLOCK_SIZE, max_model_len=MAX_LEN,
    vocab_size=VOCAB, eos_ids=(1,),
)  # fmt: skip


@njit
def token_after(token, position):
    """The engine's answer to an input token at a position."""
    return 2 + (token * 31 + position * 17 + 7) % (VOCAB - 2)


@njit
def answer(token, position, out):
    """A whole answer, from the prompt's last token and its position on."""
    for k in range(out.shape[0]):
        token = token_after(token, position + k)
        out[k] = token


@njit
def run_engine(io_words, table_words, launcher_words, ahead):
    """The engine's thread: answers by the formula until it is told to stop. `ahead`: it hands on."""
    io = step_view(io_words)
    table = table_view(table_words)
    launcher = launcher_view(launcher_words)
    taken = spins = 0
    while not engine_stopped(launcher):
        executable = peek(launcher, taken)
        if executable < 0:
            pause(spins)
            spins += 1
            continue
        spins = 0
        taken += 1
        graph = executable // EXECS
        decodes, shape = table.kind[graph] == DECODE, table.shape[graph]
        if decodes:
            for row in range(shape):
                seat = io.decode_rows[row]
                if seat >= 0:
                    io.out_token[seat] = token_after(io.seat_token[seat], io.seat_position[seat])
        else:
            for run in range(io.run_seat.shape[0]):
                seat = io.run_seat[run]
                if seat >= 0 and io.run_samples[run] != 0:
                    last = io.run_start[run + 1] - 1
                    io.out_token[seat] = token_after(io.prefill_token[last], io.prefill_position[last])
        ticket = io.control[TICKET]
        if ahead and decodes:
            hand_on(ticket, io.decode_rows, shape, io.seat_position, io.out_token, io.seat_token,
                    io.seat_position, io.late_token, 0, 1)  # fmt: skip
            release_ahead(io.control, ticket, 0)
        else:
            io.control[FAULT] = 0
            store_release(io.control, DONE, ticket)
        retire(launcher, executable)


@dataclass
class Report:
    """What a run saw.

    Attributes
    ----------
    transitions : int
        Changes of control words: claims, admissions, tokens, preemptions, ends, releases.
    problems : list of str
        Violations, by the invariants' names.
    """

    transitions: int = 0
    requests: int = 0
    tokens: int = 0
    cancelled: int = 0
    preempted: int = 0
    deaths: int = 0
    windows: int = 0
    overruns: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def summary(self) -> str:
        """One line, and one for each problem."""
        lines = [
            f"{'ok  ' if self.ok else 'FAIL'} threads  {self.transitions:,} transitions, "
            f"{self.requests:,} requests, "
            f"{self.tokens:,} tokens, {self.cancelled:,} cancelled, "
            f"{self.preempted:,} preempted, {self.deaths} deaths, {self.windows:,} windows, "
            f"{self.overruns:,} log overruns, {self.seconds:.1f} s"
        ]
        return "\n".join([*lines, *(f"     {problem}" for problem in self.problems[:20])])


class Client:
    """One front end's life: random requests and cancels, every answer checked."""

    def __init__(self, port: FrontEndPort, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.expected: dict[Any, np.ndarray] = {}
        self.got: dict[Any, int] = {}
        self.cancelled: set[Any] = set()
        self.counts = {"cancelled": 0}
        self.problems: list[str] = []

    def submit(self, most: int) -> None:
        """Submit a burst into free slots."""
        burst, answers = [], []
        for _ in range(min(most, self.port.free_slots())):
            length = self.random.randint(1, 40)
            prompt = np.array([self.random.randrange(2, VOCAB) for _ in range(length)], np.int32)
            tokens = self.random.randint(1, LONGEST_ANSWER)
            burst.append(Request(prompt, tokens))
            out = np.zeros(tokens, np.int32)
            answer(int(prompt[-1]), length - 1, out)
            answers.append(self._cut(out, burst))
        for handle, out in zip(self.port.submit_many(burst), answers, strict=True):
            if isinstance(handle, Exception):
                continue  # the arena is fragmented: later
            if handle in self.expected:
                self.problems.append(f"submit-to-empty: {handle} was given twice")
            self.expected[handle], self.got[handle] = out, 0

    def _cut(self, out: np.ndarray, burst: list[Request]) -> np.ndarray:
        """Make a token of some answers a stop token; the answer ends with the first of its kind."""
        if self.random.random() < 0.7:
            return out
        stop = int(self.random.choice(out))
        burst[-1] = replace(burst[-1], stop_ids=(stop,))
        return out[: int(np.argmax(out == stop)) + 1]

    def poll(self) -> int:
        """Poll once; check what came."""
        events = self.port.poll()
        for event in events:
            self._check(event)
        return len(events)

    def _check(self, event: Any) -> None:
        handle = event.handle
        expected = self.expected.get(handle)
        if expected is None:
            self.problems.append(f"ends-once: news of {handle} after its end")
            return
        at_token = self.got[handle]
        if not np.array_equal(event.tokens, expected[at_token : at_token + len(event.tokens)]):
            self.problems.append(f"delivered-in-order: {handle} at token {at_token}: {event.tokens[:5]}")
        self.got[handle] = at_token + len(event.tokens)
        if event.usage != self.got[handle]:
            self.problems.append(f"delivered-in-order: {handle} counts {event.usage}, got {self.got[handle]}")
        if event.reason == Reason.NONE:
            return
        whole = self.got[handle] == len(expected)
        if not (event.reason in (Reason.LENGTH, Reason.STOP) and whole) and not (
            event.reason == Reason.CANCELLED and handle in self.cancelled
        ):
            self.problems.append(f"true-reason: {handle} ended as {event.reason.name} at {self.got[handle]}")
        self.counts["cancelled"] += event.reason == Reason.CANCELLED
        del self.expected[handle]

    def maybe_cancel(self) -> None:
        """Cancel a request now and then."""
        if self.expected and self.random.random() < 0.2:
            handle = self.random.choice(list(self.expected))
            self.cancelled.add(handle)
            self.port.cancel(handle)

    def live_until(self, stop: Any, deadline: float) -> None:
        """Go on until told to stop, then end what is open."""
        while not stop.is_set() and time.monotonic() < deadline and not self.problems:
            self.submit(SLOTS)
            self.maybe_cancel()
            self.poll()
            if self.random.random() < 0.9:  # mostly many tokens a poll, sometimes every one
                time.sleep(0.001)
        while self.expected and time.monotonic() < deadline and not self.problems:
            if not self.poll():
                time.sleep(self.port.idle_interval())
        if self.expected and not self.problems:
            self.problems.append(f"progress: {len(self.expected)} requests never ended")


def client_main(name: str, front_end: int, seed: int, takeover: bool, stop: Any, results: Any) -> None:
    """A front end's process."""
    transport = ShmTransport.attach(name, deadline_s=30.0)
    port = FrontEndPort(transport, front_end, takeover=takeover, deadline_s=60.0)
    client = Client(port, seed)
    client.live_until(stop, time.monotonic() + DEADLINE_S)
    counts = port.counts()
    if counts["protocol_violations"]:
        client.problems.append(f"own-tokens: the reader counted {counts['protocol_violations']} violations")
    results.put({**client.counts, "overruns": counts["log_overruns"], "problems": client.problems[:10]})
    port.close()


class Bench:
    """Ring, scheduler thread and engine thread of this process."""

    def __init__(self, name: str, pipelined: bool) -> None:
        geometry = RingGeometry(
            slots=SLOTS * FRONT_ENDS, front_ends=FRONT_ENDS, arena_tokens=FRONT_ENDS * SLOTS * 192,
            log_entries=1 << 12, flight_entries=1 << 8,
        )  # fmt: skip
        self.memory = RingMemory.create(name, geometry, max_model_len=MAX_LEN, vocab_size=VOCAB)
        self.ring = self.memory.view
        self.state_words = sc.make_state(SPEC, geometry)
        self.state = sc.state_view(self.state_words)
        self._io = np.zeros(step_words(SPEC), np.int64)
        format_step(self._io, SPEC)
        self._table = make_table(SPEC)
        self._launcher = make_launcher(EXECS * len(shapes(SPEC)))
        self._loop = CpuLoop(FCFS, pipelined)
        self.verdict = -1

    def start(self) -> None:
        """Compile, then start both threads."""
        self._loop.compile()
        run_engine.compile((*[int64[::1]] * 3, boolean))
        words, engine = self.memory.words, (self._io, self._table, self._launcher, self._loop.pipelined)

        def schedule() -> None:
            self.verdict = self._loop(words, self.state_words, self._io, self._table, self._launcher)

        self._threads = [
            threading.Thread(target=schedule, daemon=True),
            threading.Thread(target=run_engine, args=engine, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def transitions(self) -> int:
        """Changes of control words so far."""
        core = self.state.core
        return int(
            2 * core[sc.K_CLAIMS] + core[sc.K_TOKENS] + 2 * core[sc.K_PREEMPTIONS] + 2 * core[sc.K_FINISHED]
        )

    def stop(self) -> list[str]:
        """Drain, join, and look at the books; problems."""
        self.ring.command[at.C_STOP] = at.DRAIN
        self._threads[0].join(60.0)
        stop_engine(launcher_view(self._launcher))
        self._threads[1].join(60.0)
        core, problems = self.state.core, []
        if any(thread.is_alive() for thread in self._threads):
            problems.append("progress: a thread did not end")
        if self.verdict != sc.STOPPED:
            problems.append(f"no-fault: the scheduler ended with verdict {self.verdict}")
        if core[sc.K_SEATS_FREE] != SEATS or core[sc.K_BLOCKS_FREE] != BLOCKS:
            problems.append(
                f"no-leak: {core[sc.K_SEATS_FREE]} seats and {core[sc.K_BLOCKS_FREE]} blocks free"
            )
        if core[sc.K_CLAIMS] != core[sc.K_FINISHED]:
            problems.append(f"ends-once: {core[sc.K_CLAIMS]} claims, {core[sc.K_FINISHED]} ends")
        for slot in range(self.ring.req.shape[0]):
            if slot_state(int(self.ring.ctl[2 * slot]), int(self.ring.req[slot])) != EMPTY:
                problems.append(f"no-leak: slot {slot} is not EMPTY")
        return problems


def hammer(
    transitions: int = TRANSITIONS, *, deaths: bool = True, seed: int = 1, pipelined: bool = False
) -> Report:
    """Run until so many transitions; front end 0 is killed half-way and taken over.

    Parameters
    ----------
    pipelined : bool
        Whether decode steps are launched ahead (`scheduler.ahead`).
    """
    context = multiprocessing.get_context("spawn")
    name = f"verify-{os.getpid()}"
    bench = Bench(name, pipelined)
    began, report = time.monotonic(), Report()
    stop, results = context.Event(), context.Queue()
    processes: list[Any] = []

    def start(front_end: int, takeover: bool) -> Any:
        process = context.Process(
            target=client_main, daemon=True,
            args=(name, front_end, seed + len(processes), takeover, stop, results),
        )  # fmt: skip
        process.start()
        processes.append(process)
        return process

    try:
        bench.start()
        first = [start(front_end, False) for front_end in range(FRONT_ENDS)]
        _wait(bench, transitions // 2, first, report)
        if deaths and report.ok:
            os.kill(first[0].pid, signal.SIGKILL)
            first[0].join(30.0)
            report.deaths = 1
            start(0, True)
        alive = processes[1:] if report.deaths else processes
        _wait(bench, transitions, alive, report)
        stop.set()
        for _ in alive:
            outcome = results.get(timeout=120.0)
            report.cancelled += outcome["cancelled"]
            report.overruns += outcome["overruns"]
            report.problems += outcome["problems"]
        for process in alive:
            process.join(60.0)
        report.problems += bench.stop()
    finally:
        stop.set()
        for process in processes:
            if process.is_alive():
                process.terminate()
        report.transitions, core = bench.transitions(), bench.state.core
        report.tokens, report.preempted = int(core[sc.K_TOKENS]), int(core[sc.K_PREEMPTIONS])
        report.windows, report.requests = int(core[sc.K_WINDOWS]), int(core[sc.K_FINISHED])
        report.seconds = time.monotonic() - began
        bench.memory.close()
    return report


def _wait(bench: Bench, transitions: int, processes: list[Any], report: Report) -> None:
    """Until the bench has made so many transitions, or something is wrong."""
    give_up, before, since = time.monotonic() + DEADLINE_S, -1, time.monotonic()
    while bench.transitions() < transitions:
        time.sleep(0.05)
        now, count = time.monotonic(), bench.transitions()
        if count != before:
            before, since = count, now
        if any(not process.is_alive() for process in processes):
            report.problems.append("progress: a front end ended early")
        if now > give_up or now - since > 60.0:
            report.problems.append(f"progress: {count} transitions and no more")
        if report.problems:
            return

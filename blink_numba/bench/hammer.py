"""Contended claims on the GPU: many blocks race for every slot; each must be won exactly once.

First the front ends are lanes of the same kernel (as many claims as the memory gives), then
the host submits, cancels, dies and is replaced, over a ring in registered host memory.
"""

from __future__ import annotations

import mmap
import time

import numpy as np

from blink_numba.bench.report import Row
from ring import layout as at
from ring.layout import RingGeometry
from ring.views import format_ring, host_view

CLAIMS = 100_000_000
KERNEL_LIMIT_S = 60


class HammerError(RuntimeError):
    """A claim was lost, doubled or broken, or a loop passed its deadline."""


def run(
    claims: int = CLAIMS, slots: int = 2048, blocks: int = 0, host_requests: int = 400_000, deaths: int = 3
) -> list[Row]:
    """Hammer; rows of figures. Raises `HammerError` on any violation.

    Parameters
    ----------
    claims : int
        Claims in the GPU's memory.
    slots : int
        Slots raced for; multiple of 32.
    blocks : int
        Blocks of 256 threads; 0: two a multiprocessor.
    host_requests, deaths : int
        Requests that the host submits between a death and the next, and how often it dies.
    """
    from graphs._cuda import cuda

    if not blocks:
        blocks = 2 * cuda.get_current_device().MULTIPROCESSOR_COUNT
    return [*_on_device(claims, slots, blocks), *_with_host(host_requests, deaths)]


def _geometry(slots: int) -> RingGeometry:
    return RingGeometry(slots=slots, arena_tokens=max(slots, 64), log_entries=4, flight_entries=2)


def _host_memory(words: int) -> np.ndarray:
    """Zeroed pages that can be registered."""
    return np.frombuffer(mmap.mmap(-1, 8 * words), np.int64)


def _state(geometry: RingGeometry) -> np.ndarray:
    from blink_numba.bench.scan_kernels import SPEC
    from scheduler import state as sc

    return sc.make_state(SPEC, geometry, placement=at.DEVICE_PLACEMENT)


def _raise_if_wrong(tallies: np.ndarray, won: int, expected: int, where: str) -> None:
    from blink_numba.verify.hammer_steps import T_LATE, T_VIOLATIONS

    if tallies[T_VIOLATIONS] or tallies[T_LATE] or won != expected:
        raise HammerError(
            f"{where}: {won} claims won of {expected}, {tallies[T_VIOLATIONS]} violations, "
            f"{tallies[T_LATE]} loops past their deadline"
        )


def _on_device(claims: int, slots: int, blocks: int) -> list[Row]:
    from blink_numba.verify.hammer_kernels import claim_hammer
    from blink_numba.verify.hammer_steps import T_CONTENDERS, T_DONE, T_WON, TALLIES
    from graphs._cuda import cuda, new_stream

    geometry, stream = _geometry(slots), new_stream()
    words = np.zeros(geometry.words(), np.int64)
    format_ring(words, geometry)
    ring, state = cuda.to_device(words), cuda.to_device(_state(geometry))
    narrow = ring.view(np.int32)
    wins, tallies = cuda.to_device(np.zeros(slots, np.int64)), cuda.to_device(np.zeros(TALLIES, np.int64))
    cuda.synchronize()
    rounds, done, seconds = max(1, claims // slots // 16), 0, 0.0
    while done < claims:
        began = time.perf_counter()
        claim_hammer[blocks, 256, stream](
            ring, narrow, state, wins, tallies, slots, rounds, KERNEL_LIMIT_S * 1_000_000_000
        )
        stream.synchronize()
        seconds += time.perf_counter() - began if done else 0.0  # the first launch also compiles
        done += rounds * slots
        seen = tallies.copy_to_host()
        _raise_if_wrong(seen, int(seen[T_WON]), done, "on the device")
        seen[T_DONE] = 0
        tallies.copy_to_device(seen)
        cuda.synchronize()
    timed = done - rounds * slots
    contenders = int(tallies.copy_to_host()[T_CONTENDERS])
    return [
        Row("device_claims", done, "count", float(CLAIMS), slots=slots, threads=256 * blocks),
        Row("device_contenders_per_claim", contenders / done, "ratio"),
        Row("device_claims_per_s", timed / seconds if timed else 0.0, "1/s"),
        Row("device_violations", 0.0, "count", 0.0, "lower"),
    ]


def _with_host(requests: int, deaths: int, slots: int = 256, blocks: int = 8) -> list[Row]:
    from blink_numba.runtime.cuda import Registered
    from blink_numba.verify.hammer_kernels import claim_hammer
    from blink_numba.verify.hammer_steps import T_CONTENDERS, T_WON, TALLIES, adopt, host_front_end
    from graphs._cuda import cuda, new_stream
    from rdma.fencing import declare_dead

    geometry, stream = _geometry(slots), new_stream()
    words, win_words = _host_memory(geometry.words()), _host_memory(max(slots, 512))
    format_ring(words, geometry)
    ring = host_view(words)
    wins = win_words[:slots]
    registered, registered_wins = Registered(words), Registered(win_words)
    state, tallies = cuda.to_device(_state(geometry)), cuda.to_device(np.zeros(TALLIES, np.int64))
    mine, states = np.zeros(TALLIES, np.int64), np.zeros(2 * slots, np.int64)
    host_front_end(ring, wins, states, 1, 0, 0, mine)  # compiled before a kernel is resident
    adopt(ring, states)
    cuda.synchronize()
    claim_hammer[blocks, 256, stream](
        registered.words, registered.narrow, state, registered_wins.words[:slots], tallies, 0, 0,
        KERNEL_LIMIT_S * 1_000_000_000,
    )  # fmt: skip
    began, finished = time.perf_counter(), 0
    try:
        for life in range(deaths + 1):
            last = life == deaths
            finished += int(
                host_front_end(ring, wins, states, 7 + life, 2 * requests if not last else requests,
                               0 if last else requests, mine)
            )  # fmt: skip
            if not last:
                declare_dead(ring, 0)
                left = int(adopt(ring, states))
                if left:
                    raise HammerError(f"after death {life + 1}: {left} slots never settled")
        seconds = time.perf_counter() - began
    finally:
        ring.command[at.C_STOP] = at.STOP
        stream.synchronize()
    seen = tallies.copy_to_host()
    seen[24:] += mine[24:]
    won = int(seen[T_WON])
    _raise_if_wrong(seen, won, int(wins.sum()), "with the host")
    registered.close()
    registered_wins.close()
    return [
        Row("host_claims", won, "count", deaths=deaths, cancelled_one_in=8),
        Row("host_finished", finished, "count"),
        Row("host_contenders_per_claim", int(seen[T_CONTENDERS]) / max(won, 1), "ratio"),
        Row("host_claims_per_s", won / seconds, "1/s"),
        Row("host_violations", 0.0, "count", 0.0, "lower"),
    ]

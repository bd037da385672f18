"""What a user would have felt: TTFT, TPOT, ITL, end to end; and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.simulator import Outcome
from scheduler.simulator.events import BUCKETS_PER_DOUBLING

QUANTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
MS = 1e6


@dataclass(frozen=True)
class Slo:
    """A promise to users: first token and time between tokens, in milliseconds."""

    ttft_ms: float = 1000.0
    tpot_ms: float = 50.0


@dataclass(frozen=True)
class Metrics:
    """Of the requests that were answered, warm-up left out; times in milliseconds.

    Attributes
    ----------
    ttft, tpot, e2e, queueing : float64[n]
        To the first token; a token after that (answers of one token are left out); to the end;
        to the first seat.
    itl : dict of float to float
        Quantiles of the time between tokens, from the histogram of all of them.
    goodput : float
        Requests a second that met the `Slo`.
    throughput, request_rate : float
        Tokens and requests a second.
    fairness : float
        Jain's index of the tenants' normalised service while all were busy: 1 is even, 1/n is one
        tenant taking all.
    utilisation : float
        Share of the time in which a step ran.
    batch : float
        Mean rows of a decode step, weighted by time.
    in_system : float
        Mean number of requests between arrival and end (Little's law's L).
    preemptions, unanswered : int
        Seats lost; requests that ended without their full answer.
    """

    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    queueing: np.ndarray
    itl: dict[float, float]
    goodput: float
    throughput: float
    request_rate: float
    fairness: float
    utilisation: float
    batch: float
    in_system: float
    preemptions: int
    unanswered: int

    @classmethod
    def of(cls, outcome: Outcome, *, slo: Slo | None = None, warmup: float = 0.05) -> Metrics:
        """Measure an outcome; the first share `warmup` of the arrivals is left out."""
        slo = slo or Slo()
        requests, count = outcome.requests, len(outcome.requests)
        answered = outcome.first >= 0
        kept = answered & (np.arange(count) >= int(warmup * count))
        if not kept.any():
            raise ValueError("no request was answered: there is nothing to measure")
        arrive, output = requests.arrive[kept], requests.output[kept]
        ttft = (outcome.first[kept] - arrive) / MS
        e2e = (outcome.done[kept] - arrive) / MS
        long = output > 1
        tpot = (outcome.done[kept] - outcome.first[kept])[long] / (output[long] - 1) / MS
        slow = np.zeros(len(output))
        slow[long] = tpot
        span_s = max(float(outcome.done[kept].max() - arrive.min()) / 1e9, 1e-9)
        good = int(((ttft <= slo.ttft_ms) & (slow <= slo.tpot_ms)).sum())
        counts = outcome.counts
        decode_ns = max(counts["busy_ns"] - counts["prefill_ns"], 1)
        return cls(
            ttft=ttft,
            tpot=tpot,
            e2e=e2e,
            queueing=(outcome.seated[kept] - arrive) / MS,
            itl={q: gap_quantile(outcome.gaps, q) for q in QUANTILES},
            goodput=good / span_s,
            throughput=float(output.sum()) / span_s,
            request_rate=int(kept.sum()) / span_s,
            fairness=fairness(outcome),
            utilisation=counts["busy_ns"] / max(counts["clock_ns"], 1),
            batch=counts["rows_ns"] / decode_ns,
            in_system=float(e2e.sum()) / 1e3 / span_s,
            preemptions=counts["preemptions"],
            unanswered=int(count - answered.sum()),
        )

    def row(self) -> dict[str, Any]:
        """One flat row of figures, as sweeps collect them."""
        row: dict[str, Any] = {}
        for name in ("ttft", "tpot", "e2e", "queueing"):
            values = getattr(self, name)
            row[f"{name}_mean_ms"] = float(values.mean()) if len(values) else 0.0
            for q in QUANTILES:
                row[f"{name}_p{q:g}_ms"] = float(np.percentile(values, q)) if len(values) else 0.0
        for q, value in self.itl.items():
            row[f"itl_p{q:g}_ms"] = value
        for name in (
            "goodput",
            "throughput",
            "request_rate",
            "fairness",
            "utilisation",
            "batch",
            "in_system",
            "preemptions",
            "unanswered",
        ):
            row[name] = getattr(self, name)
        return row


def gap_quantile(gaps: np.ndarray, quantile: float) -> float:
    """A quantile of the time between tokens in ms, from the histogram; to 4.5 % (half a bucket)."""
    total = int(gaps.sum())
    if total == 0:
        return 0.0
    bucket = int(np.searchsorted(np.cumsum(gaps), quantile / 100 * total))
    return 1e-3 * 2 ** ((bucket + 0.5) / BUCKETS_PER_DOUBLING)


def fairness(outcome: Outcome) -> float:
    """Jain's index of the tokens each tenant got, over what it asked for, until the first ran dry.

    Service is counted at the end of each answer; 1.0 with one tenant.
    """
    requests = outcome.requests
    tenants = np.unique(requests.tenant)
    if len(tenants) < 2:
        return 1.0
    # while every tenant still had requests to come
    horizon = min(int(requests.arrive[requests.tenant == who].max()) for who in tenants)
    ended = (outcome.done >= 0) & (outcome.done <= horizon)
    asked = requests.arrive <= horizon
    service = requests.prompt + requests.output
    got = np.array([service[ended & (requests.tenant == who)].sum() for who in tenants], float)
    want = np.array([service[asked & (requests.tenant == who)].sum() for who in tenants], float)
    share = np.minimum(got / np.maximum(want, 1), 1.0)
    return float(share.sum() ** 2 / (len(share) * (share**2).sum())) if share.any() else 1.0

"""Counters and histograms of the front end, under vLLM's names where the meaning is the same.

Everything here is written by the event loop's thread alone, so a count is an addition and
nothing is locked; `Collector` turns the numbers into Prometheus' text when it is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

# Seconds. vLLM's, with finer steps at the lower end, where this server works.
_TTFT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
         20.0, 40.0, 80.0, 160.0)  # fmt: skip
_ITL = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
        5.0, 10.0)  # fmt: skip
_LATENCY = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
            120.0, 240.0, 480.0, 960.0)  # fmt: skip
_TOKENIZE = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1, 1.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Histogram:
    """Counts by bucket; `observe` is cheap enough to be called for each token."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: counts up to each bound."""
        buckets, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", below))
        return buckets


@dataclass
class Metrics:
    """What the front end counts. Times are in seconds.

    Attributes
    ----------
    ttft, itl, e2e : Histogram
        From a request's arrival to its first token, between tokens, from arrival to the end.
    tokenize : Histogram
        What turning a prompt's text into tokens takes of the time to the first token.
    queue, prefill, decode, inference : Histogram
        Arrival to seat, seat to first token, first to last token, seat to last token.
    """

    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    tokenize: Histogram = field(default_factory=lambda: Histogram(_TOKENIZE))
    queue: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    prefill: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    decode: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    inference: Histogram = field(default_factory=lambda: Histogram(_LATENCY))
    prompt_length: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    answer_length: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    responses: Counter[tuple[str, int]] = field(default_factory=Counter)


_HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "Arrival to first token", "ttft"),
    ("vllm:inter_token_latency_seconds", "Between tokens of an answer", "itl"),
    ("vllm:e2e_request_latency_seconds", "Arrival to the end of the answer", "e2e"),
    ("blink_numba:tokenize_seconds", "Text to tokens, within the time to first token", "tokenize"),
    ("vllm:request_queue_time_seconds", "Arrival to a seat in the batch", "queue"),
    ("vllm:request_prefill_time_seconds", "Seat to first token", "prefill"),
    ("vllm:request_decode_time_seconds", "First to last token", "decode"),
    ("vllm:request_inference_time_seconds", "Seat to last token", "inference"),
    ("vllm:request_prompt_tokens", "Prompt tokens of a request", "prompt_length"),
    ("vllm:request_generation_tokens", "Tokens of an answer", "answer_length"),
)


class FrontEndCollector(Collector):
    """Prometheus' view of `Metrics` and of the ring.

    Parameters
    ----------
    metrics : Metrics
    model : str
        Value of the label ``model_name``.
    gauges, counters : callable
        Give ``(name, help, value)`` of what is read from the ring at the moment of asking.
    """

    def __init__(self, metrics: Metrics, model: str,
                 gauges: Callable[[], list[tuple[str, str, float]]],
                 counters: Callable[[], list[tuple[str, str, float]]]) -> None:  # fmt: skip
        self._metrics, self._model, self._gauges, self._counters = metrics, model, gauges, counters

    def collect(self) -> Iterator[Metric]:
        label, model = ["model_name"], [self._model]
        for name, text, value in self._gauges():
            gauge = GaugeMetricFamily(name, text, labels=label)
            gauge.add_metric(model, value)
            yield gauge
        for name, text, attribute in _HISTOGRAMS:
            histogram: Histogram = getattr(self._metrics, attribute)
            family = HistogramMetricFamily(name, text, labels=label)
            family.add_metric(model, histogram.cumulative(), sum_value=histogram.total)
            yield family
        mine = [
            ("vllm:prompt_tokens", "Prompt tokens of accepted requests", self._metrics.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated", self._metrics.generation_tokens),
        ]
        for name, text, value in mine + self._counters():
            counter = CounterMetricFamily(name, text, labels=label)
            counter.add_metric(model, value)
            yield counter
        finished = CounterMetricFamily(
            "vllm:request_success", "Answers by the reason they ended for", labels=[*label, "finished_reason"]
        )
        for reason, count in sorted(self._metrics.finished.items()):
            finished.add_metric([*model, reason], count)
        yield finished
        responses = CounterMetricFamily(
            "http_requests", "HTTP responses by path and status", labels=["handler", "status"]
        )
        for (path, status), count in sorted(self._metrics.responses.items()):
            responses.add_metric([path, str(status)], count)
        yield responses


class Exposition:
    """Writes the text that ``/metrics`` answers with."""

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, collector: FrontEndCollector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    def text(self) -> bytes:
        return generate_latest(self._registry)

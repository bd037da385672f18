"""Decode steps of a constant batch, by the scheduler's own stamps.

On a GPU beside the same graph alone and the memory's floor (`decode_cuda`); on the CPU tokens a
second. Requests go through the ring; weights are random unless the model is ``tiny``.
"""

from __future__ import annotations

from blink_numba.bench.decode_cuda import measure
from blink_numba.bench.flight import FlightTail, decode_steps, prefill_rate, quantiles
from blink_numba.bench.report import Row, median_row
from blink_numba.bench.resident import answer_all, engine, port_of, random_prompts
from blink_numba.runtime.probe import cuda_usable

PROMPT, TOKENS = 64, 48
ANSWER_S = 300.0


def run(
    backend: str = "auto",
    models: str = "",
    batches: str = "",
    repeats: int = 3,
    batch_invariant: bool = False,
) -> list[Row]:
    """Time of a decode step and prefill rate, by model and batch.

    Parameters
    ----------
    backend : str
        ``auto``, ``cpu`` or ``cuda``.
    models, batches : str
        With commas between; by default what the backend serves in time: smollm2 and llama3-8b at
        1, 16 and 64 on a GPU, smollm2 at 1, 4 and 16 on the CPU.
    """
    on_gpu = backend == "cuda" or (backend == "auto" and cuda_usable() is None)
    names = [name for name in models.split(",") if name] or ["smollm2", *["llama3-8b"] * on_gpu]
    sizes = [int(size) for size in batches.split(",") if size] or [1, *((16, 64) if on_gpu else (4, 16))]
    if on_gpu:
        return measure(names, sizes, repeats, batch_invariant)
    return [row for name in names for row in _measure_cpu(name, sorted(sizes), repeats)]


def _measure_cpu(model: str, batches: list[int], repeats: int) -> list[Row]:
    rows = []
    with engine(model, batches[-1], PROMPT + TOKENS, backend="cpu", prefill_tokens=256) as running:
        vocab_size, flight = running.spec.vocab_size, running.ring.view.flight
        with port_of(running) as port:
            answer_all(port, random_prompts(1, PROMPT, vocab_size), 4, ANSWER_S)  # warms up
            for batch in batches:
                steps, prefills = [], []
                for repeat in range(repeats):
                    tail = FlightTail(flight)
                    answer_all(port, random_prompts(batch, PROMPT, vocab_size, repeat), TOKENS, ANSWER_S)
                    entries = tail.entries()
                    steps.append(quantiles(decode_steps(entries, batch)))
                    prefills.append(prefill_rate(entries))
                case, p50 = f"{model}/b{batch}", [each["p50"] for each in steps]
                rows.append(median_row(f"{case}/step_us", p50, "us", better="lower", p99=steps[0]["p99"]))
                rows.append(median_row(f"{case}/tok_s", [batch / each * 1e6 for each in p50], "tok/s"))
        rows.append(median_row(f"{model}/prefill_tok_s", prefills, "tok/s", prompts=batch, prompt=PROMPT))
    return rows

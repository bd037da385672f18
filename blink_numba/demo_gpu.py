"""``make demo-gpu``: the demo on a GPU, and what no other server shows: its host process stopped.

One answer streams while the engine's host process is stopped (SIGSTOP). Tokens keep coming,
since the scheduler is a kernel; a new request is admitted and answered meanwhile. The times of
its steps are the scheduler's own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from rich.console import Console

from blink_numba.bench.flight import FlightTail, decode_steps
from blink_numba.config import load_config
from blink_numba.demo import PROMPT, stream_chat
from blink_numba.errors import EngineStartError
from blink_numba.serving import Serving, ServingError
from ring.memory import RingMemory

SHARE_TOKENS = 400  # that must arrive before, during and after the stop
ANSWER_TOKENS = 100  # of an answer: each share has some, so all see contexts of the same lengths
DEADLINE_S = 60.0


class Stream(threading.Thread):
    """An answer, asked for again whenever it ends; counts the tokens that arrive."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._enough = threading.Event()
        self.tokens = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        body = {
            "prompt": "Once upon a time", "max_tokens": ANSWER_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        try:
            while not self._enough.is_set():
                with httpx.stream(
                    "POST", f"{self._url}/v1/completions", json=body, timeout=DEADLINE_S
                ) as response:
                    response.raise_for_status()
                    for line in response.iter_lines():
                        if line.startswith("data: {") and "error" in json.loads(line[6:]):
                            raise ServingError(line[6:])
                        self.tokens += line.startswith("data: {")
        except (httpx.HTTPError, ServingError) as error:
            self.failure = error

    def wait(self, more: int) -> None:
        """Until `more` tokens have arrived; `ServingError` if they do not."""
        wanted, give_up = self.tokens + more, time.monotonic() + DEADLINE_S
        while self.tokens < wanted:
            if self.failure is not None:
                raise ServingError(f"the stream broke off: {self.failure}")
            if time.monotonic() > give_up:
                raise ServingError(f"only {self.tokens} of {wanted} tokens arrived")
            time.sleep(0.005)

    def finish(self) -> None:
        """Let the answer end."""
        self._enough.set()
        self.join(DEADLINE_S)


def stop_and_go(serving: Serving, flight: np.ndarray, console: Console) -> None:
    """Stop the engine's host process in the middle of a stream; let it go on; say what happened.

    Raises
    ------
    ServingError
        The tokens stopped, too, or a request was not answered.
    """
    stream = Stream(serving.url)
    stream.start()
    stream.wait(50)
    _report(console, "running", stream, flight)
    os.kill(serving.engine_pid, signal.SIGSTOP)
    try:
        while _state(serving.engine_pid) != "T":
            time.sleep(0.001)
        _report(console, "stopped", stream, flight)
        body = {"prompt": "Are you there?", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{serving.url}/v1/completions", json=body, timeout=DEADLINE_S)
        answer.raise_for_status()
        count = answer.json()["usage"]["completion_tokens"]
        console.print(f"  a new request was admitted and answered meanwhile: {count} tokens")
        if _state(serving.engine_pid) != "T":
            raise ServingError("the engine's process did not stay stopped")
    finally:
        os.kill(serving.engine_pid, signal.SIGCONT)
    _report(console, "continued", stream, flight)
    stream.finish()


def _report(console: Console, phase: str, stream: Stream, flight: np.ndarray) -> None:
    tail, before, began = FlightTail(flight), stream.tokens, time.perf_counter()
    stream.wait(SHARE_TOKENS)
    rate = (stream.tokens - before) / (time.perf_counter() - began)
    steps = decode_steps(tail.entries())
    p50, p99 = np.percentile(steps, (50, 99))
    console.print(
        f"  host process {phase:10} step P50 {p50:7.1f} µs, P99 {p99:7.1f} µs, client {rate:6.0f} tokens/s",
        highlight=False,
    )


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _model_in(folder: Path | None, model: str) -> str:
    """The model to serve: the GGUF file of `folder`, or `model`."""
    if folder is None:
        return model
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ServingError(
            f"{folder} holds no GGUF file: name another with --model-dir, or none to fetch {model}"
        )
    return str(found[0])


def demo_gpu(
    model: Annotated[str, typer.Option(help="Model to serve.")] = "smollm2",
    model_dir: Annotated[Path | None, typer.Option(help="Folder with a GGUF file, instead.")] = None,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = PROMPT,
) -> None:
    """Serve a model on the GPU, stream an answer, stop the host process in mid-stream."""
    console = Console()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    began = time.perf_counter()

    def progress(line: str) -> None:
        console.print(f"[dim]{time.perf_counter() - began:6.1f} s  {line}", highlight=False)

    try:
        config = load_config(
            {
                "model": _model_in(model_dir, model), "served_model_name": ["demo"], "backend": "cuda",
                "port": 0, "max_num_seqs": 16, "max_model_len": 2048, "kv_tokens": 16 * 2048,
                "log_level": "warning", "access_log": False, "ring": f"demo-{os.getpid()}",
            }
        )  # fmt: skip
        with Serving(config, progress) as serving, RingMemory.attach(config.ring_name) as ring:
            progress(f"serving on {serving.url}")
            console.print(f"\n[cyan]{prompt}[/]\n")
            stream_chat(serving.url, "demo", prompt, console)
            console.print("\nThe engine's host process is stopped in the middle of a stream:")
            stop_and_go(serving, ring.view.flight, console)
    except (ServingError, EngineStartError, httpx.HTTPError) as error:
        console.print(f"[red]error:[/] {error}")
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(demo_gpu)

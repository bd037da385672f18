"""``make demo``: fetch a model, serve it, stream one answer, stop.

Every token goes client → tokenizer → ring → scheduler → engine → ring → client, through the
same processes that ``blink-numba serve`` runs.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Annotated

import httpx
import typer
from rich.console import Console

from blink_numba.config import load_config
from blink_numba.errors import EngineStartError
from blink_numba.serving import Serving, ServingError

PROMPT = "Why is the sky blue? Answer in two sentences."
MAX_TOKENS = 96


def stream_chat(url: str, model: str, prompt: str, console: Console) -> None:
    """Stream one chat completion to the console, with its times."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first = last = None
    usage: dict = {}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120.0) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise ServingError(chunk["error"]["message"])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                last = time.perf_counter()
                text = choice["delta"].get("content", "")
                if text and first is None:
                    first = last
                console.print(text, end="", style="bold", highlight=False, markup=False, soft_wrap=True)
    if first is None or last is None:
        raise ServingError("the answer was empty")
    tokens = usage["completion_tokens"]
    rate = f"{(tokens - 1) / (last - first):.1f} tokens/s" if tokens > 1 and last > first else "one token"
    console.print(
        f"\n\nTTFT {(first - began) * 1e3:.0f} ms, {rate} "
        f"({usage['prompt_tokens']} prompt tokens, {tokens} generated)",
        highlight=False,
    )


def demo(
    model: Annotated[str, typer.Option(help="Model to serve.")] = "smollm2",
    backend: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    prompt: Annotated[str, typer.Option(help="What to ask.")] = PROMPT,
) -> None:
    """Fetch a model, serve it, stream one answer, stop."""
    console = Console()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    began = time.perf_counter()

    def progress(line: str) -> None:
        console.print(f"[dim]{time.perf_counter() - began:6.1f} s  {line}", highlight=False)

    config = load_config(
        {"model": model, "backend": backend, "port": 0, "log_level": "warning", "access_log": False}
    )
    try:
        with Serving(config, progress) as serving:
            progress(f"serving on {serving.url}")
            console.print(f"\n[cyan]{prompt}[/]\n")
            stream_chat(serving.url, model, prompt, console)
    except (ServingError, EngineStartError, httpx.HTTPError) as error:
        console.print(f"[red]error:[/] {error}")
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(demo)

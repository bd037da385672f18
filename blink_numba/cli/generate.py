"""``blink-numba generate``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from blink_numba.llm import LLM, Prompt
    from blink_numba.sampling import SamplingParams


def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads standard input.")],
    model: Annotated[str, typer.Option(help="A model's name, a GGUF file or a folder.")] = "smollm2",
    backend: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep this much probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep so many tokens; 0: all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of the random numbers.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A text that ends the answer; may be repeated.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text, without the chat template.")] = False,
    dummy: Annotated[bool, typer.Option("--dummy", help="Random weights.")] = False,
) -> None:
    """Answer one prompt, here and now."""
    from blink_numba.errors import EngineStartError, GenerationError, ParameterError
    from blink_numba.llm import LLM
    from blink_numba.models import ModelError
    from blink_numba.sampling import SamplingParams
    from tokenizer import TokenizerError

    notes = Console(stderr=True)
    text = sys.stdin.read() if prompt == "-" else prompt
    try:
        params = SamplingParams(
            max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=stop
        )
        with LLM(model, backend=backend, dummy=dummy, max_num_seqs=1,  # type: ignore[arg-type]
                 on_progress=lambda line: notes.print(f"[dim]{line}")) as llm:  # fmt: skip
            turns = [{"role": "user", "content": text}]
            asyncio.run(_show(llm, text if raw else llm.tokenizer.apply_chat_template(turns), params))
    except (EngineStartError, GenerationError, ParameterError, ModelError, TokenizerError) as error:
        notes.print(f"[red]error:[/] {error}")
        raise typer.Exit(1) from None


async def _show(llm: LLM, text: Prompt, params: SamplingParams) -> None:
    shown = 0
    async for output in llm.stream(text, params):
        answer = output.outputs[0].text
        sys.stdout.write(answer[shown:])
        sys.stdout.flush()
        shown = len(answer)
    sys.stdout.write("\n")

"""Counterexamples as numbered stories, with the words that they changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blink_numba.verify.model import Model


def show_word(model: Model, name: str, index: int, value: int) -> str:
    """A word and what it means."""
    words, states, at = (model.copy.module(m) for m in ("ring.words", "ring.states", "ring.layout"))
    if name == "ctl":
        state, reason = words.ctl_state(value), words.ctl_reason(value)
        meaning = f"incarnation {words.ctl_incarnation(value)}, {words.ctl_tokens(value)} tokens, "
        meaning += states.State(state).name if state in list(states.State) else f"state {state}"
        if reason:
            meaning += f" ({states.Reason(reason).name})"
        return f"ctl[{index // 2}] = {meaning}"
    if name == "req":
        command = words.req_command(value)
        names = {words.NONE: "NONE", words.SUBMIT: "SUBMIT", words.CANCEL: "CANCEL", words.RELEASE: "RELEASE"}
        return f"req[{index}] = incarnation {words.req_incarnation(value)}, {names.get(command, command)}"
    if name == "doorbell":
        return f"doorbell[{index}] = {value:#x}"
    if name == "fe_sched":
        line, word = divmod(index, at.FE_WORDS)
        what = {at.D_DRAINED: "drained", at.D_LOG_HEAD: "log head"}.get(word, f"word {word}")
        return f"{what} of front end {line} = {value}"
    if name == "fe_fence":
        return f"fence of front end {index // at.FE_WORDS} = {value}"
    if name == "control":
        step_io = model.copy.module("graphs.step_io")
        named = {step_io.TICKET: "TICKET", step_io.DONE: "DONE", step_io.FAULT: "FAULT"}
        return f"{named.get(index, index)} = {value}"
    if name == "launcher":
        return f"launches sent = {value}"
    if name == "running":
        return f"executable {index // 8} {'runs' if value else 'is idle'}"
    return f"{name}[{index}] = {value}"


def tell(model: Model, trace: list[tuple[int, int]]) -> list[str]:
    """Lines of the story of a trace: one numbered line an access, until the violation.

    Raises
    ------
    ValueError
        Nobody can make a move of the trace: it is of other sources, or of another configuration.
    """
    from blink_numba.verify.memory import Violation

    model.telling, model.steps = True, []
    ending = None
    try:
        state = model.start()
        model.steps.clear()
        for number, (actor, choice) in enumerate(trace, 1):
            model.restore(state)
            if (actor, choice) not in model.moves(state):
                raise ValueError(
                    f"move {number} of {len(trace)} is not possible: the trace is of another configuration "
                    "or variant, or the order of accesses changed since; run --only CONFIGURATION again"
                )
            state = model.move(state, actor, choice)
    except Violation as violation:
        ending = f"{violation.invariant} violated: {violation.detail}"
    finally:
        model.telling = False
    lines, folded = [], _fold([f"{step.actor} {step.text}" for step in model.steps])
    for number, text in enumerate(folded, 1):
        lines.append(f"{number:4d}  {text}")
    lines.append(f"      {ending}" if ending else "      (no violation)")
    return lines


def _fold(texts: list[str]) -> list[str]:
    """An actor's run of writes to descriptors and step buffers becomes one line."""
    folded: list[str] = []
    writer, names = "", []
    for text in [*texts, ""]:
        who, _, what = text.partition(" writes ")
        name = what.partition("[")[0]
        if name in _BULK and who == writer:
            names += [name] if name not in names else []
            continue
        if names:
            folded.append(f"{writer} writes {', '.join(names)}")
        writer, names = (who, [name]) if name in _BULK else ("", [])
        if text and not names:
            folded.append(text)
    return folded


_BULK = {
    "descriptor", "mailbox", "seat_token", "seat_position", "sampling", "block_table", "decode_rows",
    "prefill_token", "prefill_position", "prefill_seat", "run_seat", "run_start", "run_samples",
}  # fmt: skip


def encode(trace: list[tuple[int, int]]) -> str:
    """A trace as one word, for ``blink-numba verify --replay``: two hex digits a transition."""
    return "".join(f"{actor:x}{(choice + 1):x}" for actor, choice in trace)


def decode(text: str) -> list[tuple[int, int]]:
    """The trace of `encode`.

    Raises
    ------
    ValueError
        The text is none.
    """
    if not text or len(text) % 2 or set(text) - set("0123456789abcdef"):
        raise ValueError(
            "after CONFIGURATION: two hex digits (0-9, a-f) a transition are needed, all of the line that "
            f"the counterexample ended with; here are {len(text)} characters"
        )
    return [(int(text[k], 16), int(text[k + 1], 16) - 1) for k in range(0, len(text), 2)]

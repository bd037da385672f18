"""Offline generation on the real engine: answers, order, streams, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from itertools import pairwise

import psutil
import pytest

from blink_numba import LLM, SamplingParams
from blink_numba.errors import GenerationError, ParameterError
from ring.memory import SHM
from tests.frontend.harness import wait_until

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def threads() -> set[str]:
    """Names of this process's threads, but for those of the test's time limit."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith("pytest_timeout")}


def rings() -> list[str]:
    return [path.name for path in SHM.glob(f"blink-numba-llm-{os.getpid()}-*")]


@pytest.fixture(scope="module")
def llm():
    before = threads()
    with LLM("tiny", backend="cpu", max_num_seqs=8, kv_tokens=4096, max_model_len=256, slots=64) as llm:
        yield llm
    assert threads() == before
    assert rings() == []
    assert psutil.Process().children() == []


def test_answers_keep_the_order_of_the_prompts(llm):
    prompts = [f"prompt {k}" for k in range(100)]  # more than there are slots
    together = llm.generate(prompts, GREEDY)
    assert [output.prompt for output in together] == prompts
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts[:5]]
    for one, other in zip(alone, together, strict=False):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert len(one.outputs[0].token_ids) == 12
        assert one.outputs[0].finish_reason == "length"
        assert one.finished
        assert one.metrics.ttft_s is not None


def test_token_ids_are_prompts(llm):
    ids = llm.tokenizer.encode("prompt 1")
    by_ids = llm.generate([ids.tolist()], GREEDY)[0]
    assert by_ids.prompt is None
    assert by_ids.outputs[0].token_ids == llm.generate("prompt 1", GREEDY)[0].outputs[0].token_ids


def test_seeds_make_answers_repeatable(llm):
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=20)
    first, second = (llm.generate("x", params)[0] for _ in range(2))
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]
    assert len({tuple(o.token_ids) for o in first.outputs}) == 3
    single = llm.generate("x", SamplingParams(temperature=1.0, seed=6, max_tokens=20))[0]
    assert single.outputs[0].token_ids == first.outputs[1].token_ids


def test_chat_is_the_template_and_generate(llm):
    turns = [{"role": "user", "content": "hi"}]
    text = llm.tokenizer.apply_chat_template(turns, tokenize=False)
    assert llm.chat(turns, GREEDY)[0].outputs[0].text == llm.generate(text, GREEDY)[0].outputs[0].text


def test_a_stream_grows_and_may_be_left(llm):
    async def collect() -> list[str]:
        return [o.outputs[0].text async for o in llm.stream("abc", GREEDY)]

    async def leave() -> None:
        async for output in llm.stream("abc", SamplingParams(max_tokens=200, ignore_eos=True)):
            if output.outputs[0].token_ids:
                return

    texts = asyncio.run(collect())
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1] == llm.generate("abc", GREEDY)[0].outputs[0].text
    asyncio.run(leave())
    assert llm.generate("abc", GREEDY)[0].finished


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", GREEDY, "prompt"),
        ([999], GREEDY, "prompt"),
        ("x" * 400, GREEDY, "prompt"),
        ("x", SamplingParams(max_tokens=1000), "max_tokens"),
    ],
)
def test_bad_prompts_are_refused(llm, prompt, params, param):
    with pytest.raises(ParameterError) as raised:
        llm.generate([prompt], params)
    assert raised.value.param == param


# A background job of a shell is started with Ctrl-C ignored, and so are its children.
_INTERRUPTED = """
import os, signal, threading
from blink_numba import LLM, SamplingParams
signal.signal(signal.SIGINT, signal.default_int_handler)
llm = LLM("tiny", backend="cpu", max_num_seqs=8, kv_tokens=4096, max_model_len=1024, slots=64)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for _ in range(1000):
        llm.generate(["abc"] * 64, SamplingParams(max_tokens=900, ignore_eos=True))
except KeyboardInterrupt:
    print("interrupted")
print(len(llm.generate("abc", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids))
llm.close()
print([thread.name for thread in threading.enumerate() if thread is not threading.main_thread()
       and not isinstance(thread, threading.Timer)])
"""


def test_ctrl_c_leaves_it_usable_and_close_leaves_nothing():
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.stdout.split("\n")[:3] == ["interrupted", "3", "[]"], done.stdout + done.stderr
    assert done.returncode == 0


def test_ctrl_c_may_come_at_any_moment():
    """Of its start, and nothing of it is left; of a call: its requests end, no lock stays taken."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.frontend.interrupted", "24", "400"],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "24 400 []\n"


def test_ctrl_c_ends_a_stream_that_is_cancelled(llm):
    async def read() -> None:
        async for output in llm.stream("abc", SamplingParams(max_tokens=240, ignore_eos=True)):
            if output.outputs[0].token_ids:
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(read())
    finally:
        signal.signal(signal.SIGINT, before)
    assert llm.generate("abc", GREEDY)[0].finished
    assert wait_until(lambda: llm._link.live == 0)


def test_a_close_ends_what_another_thread_waits_for():
    llm, ended = LLM("tiny", backend="cpu", max_model_len=2048, slots=32), []

    def wait() -> None:
        try:
            llm.generate(["abc"] * 64, SamplingParams(max_tokens=2000, ignore_eos=True))
        except GenerationError as error:
            ended.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert wait_until(lambda: llm._link.live > 0)
    llm.close()
    waiting.join(10.0)
    assert not waiting.is_alive()
    assert ended == ["the engine was closed"]
    llm.close()
    with pytest.raises(GenerationError, match="closed"):
        llm.generate("abc", GREEDY)


def test_a_forked_child_is_told_and_does_not_end_its_parents_engine(llm):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            llm.generate("abc", GREEDY)
        except GenerationError:
            llm.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(llm.generate("abc", GREEDY)[0].outputs[0].token_ids) == 12
    assert rings()


@pytest.mark.parametrize(("prompts", "params", "named"), [
    (5, GREEDY, "prompts"), (None, GREEDY, "prompts"), ("abc", {"max_tokens": 3}, "sampling_params"),
])  # fmt: skip
def test_what_is_no_prompt_or_no_parameter_is_named(llm, prompts, params, named):
    with pytest.raises(ParameterError) as caught:
        llm.generate(prompts, params)
    assert caught.value.param == named

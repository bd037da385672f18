"""Log-probabilities of a real engine's answers: right, in order, and no matter to anybody else."""

from __future__ import annotations

import numpy as np
import pytest

from blink_numba import LLM, SamplingParams
from blink_numba.engines.cpu import CpuEngine
from blink_numba.engines.limits import EngineLimits
from blink_numba.errors import ParameterError
from blink_numba.models import load_model
from blink_numba.outputs import CompletionOutput
from ring.logprobs import TokenLogprobs
from tests.engines.driver import Driver
from tests.frontend.harness import wait_until
from tests.logprobs import check_record

PROMPTS = [f"prompt {k}" + " again" * (k % 5) for k in range(24)]


@pytest.fixture(scope="module")
def llm():
    # Fewer blocks than the batch wants: requests are preempted, and their tokens computed again.
    with LLM("tiny", backend="cpu", max_num_seqs=8, kv_tokens=512, max_model_len=256, slots=64) as llm:
        yield llm


@pytest.fixture(scope="module")
def driver():
    engine = CpuEngine(load_model("tiny"), EngineLimits(seats=1, kv_tokens=256, max_model_len=256))
    yield Driver(engine)
    engine.stop()


def record_of(output: CompletionOutput, place: int) -> TokenLogprobs:
    """What an output says of one place, as the engine said it."""
    assert output.logprobs is not None
    found = output.logprobs[place]
    chosen = found[output.token_ids[place]]
    likeliest = sorted(found.items(), key=lambda item: item[1].rank)
    assert [one.rank for _, one in likeliest] == sorted({one.rank for one in found.values()})
    return TokenLogprobs(chosen.logprob, chosen.rank, [(token, one.logprob) for token, one in likeliest])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=20),
        SamplingParams(temperature=1.3, top_k=40, seed=3, max_tokens=12, min_tokens=12, logprobs=7),
        SamplingParams(temperature=1.0, top_p=0.8, seed=9, max_tokens=12, min_tokens=6, logprobs=0),
    ],
    ids=["greedy", "drawn", "alone"],
)
def test_they_are_the_log_softmax_of_the_engine_s_logits(llm, driver, params):
    for output in llm.generate(PROMPTS[:4], params):
        answer = output.outputs[0]
        assert answer.logprobs is not None
        assert len(answer.logprobs) == len(answer.token_ids)
        total = 0.0
        for place, token in enumerate(answer.token_ids):
            driver.prefill({0: [*output.prompt_token_ids, *answer.token_ids[:place]]})
            record = record_of(answer, place)
            # an alternative that was drawn besides is one more, with its rank
            more = record.rank > params.logprobs
            kept = [pair for pair in record.likeliest if not (more and pair[0] == token)]
            check_record(record._replace(likeliest=kept), token, driver.logits(1)[0], params.logprobs)
            assert answer.logprobs[place][token].decoded_token in (chr(token), "") or token > 127
            total += record.logprob
        assert answer.cumulative_logprob == pytest.approx(total, rel=1e-6)


def test_those_who_ask_disturb_nobody_in_their_batch(llm):
    plain = SamplingParams(temperature=1.0, seed=7, max_tokens=40, ignore_eos=True)
    asking = SamplingParams(temperature=1.0, seed=7, max_tokens=40, ignore_eos=True, logprobs=20)
    alone = [llm.generate(prompt, asking)[0].outputs[0] for prompt in PROMPTS]
    without = llm.generate(PROMPTS, plain)
    mixed = llm.generate(PROMPTS, [asking if k % 3 else plain for k in range(len(PROMPTS))])
    for k, (one, other, both) in enumerate(zip(alone, without, mixed)):
        assert one.token_ids == other.outputs[0].token_ids == both.outputs[0].token_ids
        assert other.outputs[0].logprobs is None
        assert other.outputs[0].cumulative_logprob is None
        assert both.outputs[0].logprobs == (one.logprobs if k % 3 else None), "preempted or not"
    # the front end looks at the status now and then
    assert wait_until(lambda: llm._link.health.status.preemptions > 0), "32 blocks are too few for this load"


def test_each_of_n_answers_has_its_own(llm):
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=20, ignore_eos=True, logprobs=2)
    answers = llm.generate("x", params)[0].outputs
    assert len({tuple(answer.token_ids) for answer in answers}) == 3
    for index, answer in enumerate(answers):
        single = SamplingParams(temperature=1.0, seed=5 + index, max_tokens=20, ignore_eos=True, logprobs=2)
        assert llm.generate("x", single)[0].outputs[0].logprobs == answer.logprobs


def test_a_stop_string_ends_them_with_the_answer(llm):
    whole = llm.generate("abc", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1))
    answer = whole[0].outputs[0]
    stop = next(chr(token) for token in answer.token_ids[5:] if 32 < token < 127)
    cut = llm.generate(
        "abc", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1, stop=stop)
    )
    shorter = cut[0].outputs[0]
    assert shorter.stop_reason == stop
    assert len(shorter.logprobs) == len(shorter.token_ids) < 30
    assert shorter.logprobs == answer.logprobs[: len(shorter.logprobs)]


@pytest.mark.parametrize("wrong", [-1, 21, 1.0, True])
def test_how_many_is_checked(wrong):
    with pytest.raises(ParameterError) as raised:
        SamplingParams(logprobs=wrong)
    assert raised.value.param == "logprobs"


def test_log_probabilities_of_a_whole_distribution_add_up(llm):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=20)
    for found in llm.generate("abc", params)[0].outputs[0].logprobs:
        values = [one.logprob for one in found.values()]
        assert values == sorted(values, reverse=True)
        assert np.exp(values).sum() <= 1.0 + 1e-5

"""The port over shared memory, against the scripted scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from rdma import (
    ArenaFull,
    AttachError,
    BadParameter,
    FrontEndHeld,
    FrontEndPort,
    PromptTooLong,
    Request,
    RingFull,
    ShmTransport,
    SubmitError,
)
from rdma.faults import Faults, FaultyTransport
from rdma.staging import EXTENT_WORDS
from ring import layout as at
from ring.states import EMPTY, Reason, slot_state
from tests.rdma.conftest import MAX_MODEL_LEN, VOCAB, attach, attached
from tests.rdma.peer import AnswerBook, ScriptedScheduler


def prompt(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def drain(port, scheduler, book, turns=10_000):
    while book.open:
        scheduler.turn()
        book.take(port.poll())
        turns -= 1
        assert turns, f"{book.open} requests never ended"
    assert all(
        scheduler.ended[handle] == (len(book.got[handle]), book.final[handle]) for handle in book.final
    )


def all_empty(memory) -> bool:
    view = memory.view
    states = [slot_state(int(view.ctl[2 * s]), int(view.req[s])) for s in range(memory.geometry.slots)]
    return states == [EMPTY] * len(states)


def test_one_request_streams_its_answer_and_ends_once(ring):
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        book.submitted(port.submit(Request(prompt(5, 6, 7), max_tokens=5)), prompt(5, 6, 7))
        drain(port, scheduler, book)
        assert list(book.final.values()) == [Reason.LENGTH]
        assert len(next(iter(book.got.values()))) == 5
        assert port.live() == 0
        assert all_empty(ring)


def test_a_request_arrives_as_it_was_asked(ring):
    with attached(ring) as port:
        request = Request(
            prompt(1, 2, 3), max_tokens=50, min_tokens=4, temperature=0.7, top_p=0.9, top_k=40, seed=123,
            ignore_eos=True, stop_ids=(8, 9), deadline_s=1.5, priority=3, tenant=2,
            logprobs=5,
        )  # fmt: skip
        handle = port.submit(request)
        row = ring.view.descriptor[handle.slot * at.DESCRIPTOR_WORDS :][: at.DESCRIPTOR_WORDS]
        start = int(row[at.Q_PROMPT_START])
        assert ring.view.tokens[start : start + int(row[at.Q_PROMPT_LEN])].tolist() == [1, 2, 3]
        assert row[[at.Q_MAX_TOKENS, at.Q_MIN_TOKENS, at.Q_DEADLINE_NS]].tolist() == [50, 4, 1_500_000_000]
        assert row[[at.Q_TEMPERATURE_MICRO, at.Q_TOP_P_MICRO, at.Q_TOP_K]].tolist() == [700_000, 900_000, 40]
        assert row[[at.Q_SEED, at.Q_FLAGS, at.Q_PRIORITY, at.Q_TENANT]].tolist() == [123, 1, 3, 2]
        assert row[at.Q_STOP_COUNT : at.Q_STOP_0 + 2].tolist() == [2, 8, 9]
        assert row[at.Q_LOGPROBS] == 6


def test_max_tokens_is_cut_to_the_model_s_length(ring):
    with attached(ring) as port:
        handle = port.submit(Request(np.zeros(MAX_MODEL_LEN - 3, np.int32), max_tokens=100))
        assert ring.view.descriptor[handle.slot * at.DESCRIPTOR_WORDS + at.Q_MAX_TOKENS] == 3


def test_a_burst_is_one_post(ring):
    with attached(ring) as port:
        before = port.counts()["posts"]
        handles = port.submit_many([Request(prompt(k + 1), max_tokens=2) for k in range(40)])
        assert port.counts()["posts"] == before + 1
        assert sorted(handle.slot for handle in handles) == list(range(40))


def test_a_burst_into_slots_just_released_is_one_post_too(make_ring):
    ring = make_ring(slots=32)
    shm = ShmTransport.attach(ring.path.name.removeprefix("blink-numba-"))
    transport = FaultyTransport(shm, Faults(choose=lambda n: 0))  # posts late: releases wait
    port = FrontEndPort(transport)
    scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
    for round_ in range(3):
        before = port.counts()["posts"]
        prompts = [prompt(k, round_) for k in range(32)]
        for handle, text in zip(
            port.submit_many([Request(text, max_tokens=2) for text in prompts]), prompts, strict=True
        ):
            book.submitted(handle, text)
        assert port.counts()["posts"] == before + 1
        transport.complete()
        drain(port, scheduler, book)
    assert port.close() == 0
    assert all_empty(ring)


def test_a_poll_is_two_posts_at_64_active_slots(make_ring):
    ring = make_ring(slots=128)
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        for k, handle in enumerate(port.submit_many([Request(prompt(k), max_tokens=9) for k in range(64)])):
            book.submitted(handle, prompt(k))
        for _ in range(6):
            scheduler.turn()
            before = port.counts()["posts"]
            book.take(port.poll())
            assert port.counts()["posts"] - before <= 2
        assert sum(map(len, book.got.values())) == 6 * 64
        while port.live():  # answers that end cost no post either, but for the releases of the last
            scheduler.turn()
            before = port.counts()["posts"]
            book.take(port.poll())
            assert port.counts()["posts"] - before <= (2 if port.live() else 3)


def test_saying_cancel_again_before_a_poll_writes_it_once(ring):
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        handle, other = port.submit_many(
            [Request(prompt(1), max_tokens=90), Request(prompt(2), max_tokens=2)]
        )
        book.submitted(handle, prompt(1))
        book.submitted(other, prompt(2))
        for _ in range(5 * ring.geometry.slots):
            assert port.cancel(handle)
            assert port.cancel(other)
        drain(port, scheduler, book)
        assert all_empty(ring)


def test_close_writes_releases_that_wait(ring):
    """Even where it must leave another request behind, whose scheduler stands still."""
    port, scheduler = attach(ring), ScriptedScheduler(ring)
    stuck, ended = port.submit_many([Request(prompt(1), max_tokens=90), Request(prompt(2), max_tokens=1)])
    scheduler.run(3)
    assert [event.handle for event in port.poll() if event.reason] == [ended]
    assert port.close(deadline_s=0.0) == 1
    states = {
        h: slot_state(int(ring.view.ctl[2 * h.slot]), int(ring.view.req[h.slot])) for h in (stuck, ended)
    }
    assert states[ended] == EMPTY
    assert states[stuck] != EMPTY


def test_cancel_ends_a_live_request_once(ring):
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        handle = port.submit(Request(prompt(9), max_tokens=200))
        book.submitted(handle, prompt(9))
        scheduler.run(3)
        assert port.cancel(handle)
        drain(port, scheduler, book)
        assert book.final[handle] == Reason.CANCELLED
        assert not port.cancel(handle)
        assert all_empty(ring)


def test_a_cancel_that_overtakes_its_submission_ends_it_too(ring):
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        handle = port.submit(Request(prompt(9), max_tokens=200))
        book.submitted(handle, prompt(9))
        port.cancel(handle)
        drain(port, scheduler, book)
        assert book.final[handle] == Reason.CANCELLED
        assert scheduler.claims == 1


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"prompt": np.zeros(0, np.int32)}, "prompt"),
        ({"prompt": np.array([VOCAB], np.int32)}, "prompt"),
        ({"prompt": np.array([-1], np.int32)}, "prompt"),
        ({"prompt": np.zeros((2, 2), np.int32)}, "prompt"),
        ({"prompt": np.zeros(3, np.float32)}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 1.0}, "logprobs"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop_ids": tuple(range(17))}, "stop_ids"),
        ({"stop_ids": (VOCAB,)}, "stop_ids"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"deadline_s": float("inf")}, "deadline_s"),
        ({"priority": -1}, "priority"),
        ({"tenant": -1}, "tenant"),
    ],
)
def test_a_bad_parameter_is_named_and_nothing_is_written(ring, fields, parameter):
    with attached(ring) as port:
        before = ring.words.copy()
        with pytest.raises(BadParameter) as caught:
            port.submit(Request(**{"prompt": prompt(1), "max_tokens": 8} | fields))
        assert caught.value.parameter == parameter
        assert np.array_equal(ring.words, before)
        assert port.live() == 0


def test_log_probabilities_come_with_their_tokens(ring):
    """Whatever the pieces they are read in, beside requests that want none."""
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        for k, wanted in enumerate((None, 0, 20, None, 3, 20)):
            text = prompt(k + 1, 2)
            handle = port.submit(Request(text, max_tokens=60 + k, logprobs=wanted))
            book.submitted(handle, text, wanted)
        for turns in (1, 1, 2, 7, 25):
            scheduler.run(turns)
            book.take(port.poll())
        drain(port, scheduler, book)
        assert not scheduler.violations
        assert port.counts()["slots_that_lost_log"] == 0
        assert all_empty(ring)


def test_log_probabilities_that_fill_the_staging_memory_come_in_pieces(make_ring):
    ring = make_ring(arena_tokens=1 << 19)
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        for k in range(40):
            text = prompt(k + 1)
            book.submitted(port.submit(Request(text, max_tokens=200, logprobs=20)), text, 20)
        scheduler.run(210)
        polls = 0
        while book.open:
            book.take(port.poll())
            polls += 1
            assert polls < 100
        assert polls > 40 * 200 * 22 // EXTENT_WORDS
        assert all(len(answer) == 200 for answer in book.got.values())


def test_log_probabilities_that_never_fit_are_refused_at_once(make_ring):
    ring = make_ring(arena_tokens=1 << 12)
    with attached(ring) as port:
        before = ring.words.copy()
        with pytest.raises(BadParameter, match="log-probabilities") as caught:
            port.submit(Request(prompt(1), max_tokens=200, logprobs=20))
        assert caught.value.parameter == "logprobs"
        assert np.array_equal(ring.words, before)
        kept = port.submit(Request(prompt(1), max_tokens=60, logprobs=20))
        with pytest.raises(ArenaFull, match="log-probabilities"):
            port.submit(Request(prompt(1), max_tokens=60, logprobs=20))
        assert port.submit(Request(prompt(1), max_tokens=60)) != kept


def test_a_prompt_without_room_for_an_answer(ring):
    with attached(ring) as port:
        before = ring.words.copy()
        with pytest.raises(PromptTooLong, match="256"):
            port.submit(Request(np.zeros(MAX_MODEL_LEN, np.int32), max_tokens=1))
        assert np.array_equal(ring.words, before)


def test_a_full_ring_refuses_the_rest_of_a_burst_and_recovers(make_ring):
    ring = make_ring(slots=32)
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        outcome = port.submit_many([Request(prompt(k), max_tokens=2) for k in range(40)])
        assert all(isinstance(error, RingFull) for error in outcome[32:])
        for k in range(32):
            book.submitted(outcome[k], prompt(k))
        drain(port, scheduler, book)
        assert not isinstance(port.submit_many([Request(prompt(1), max_tokens=2)])[0], SubmitError)


def test_a_full_arena_refuses_and_takes_smaller_ones(make_ring):
    ring = make_ring(arena_tokens=512)
    with attached(ring) as port:
        outcome = port.submit_many(
            [Request(prompt(1), max_tokens=200), Request(prompt(2), max_tokens=200),
             Request(prompt(3), max_tokens=250), Request(prompt(4), max_tokens=16)]
        )  # fmt: skip
        refused = [isinstance(one, ArenaFull) for one in outcome]
        assert refused == [False, False, True, False]


def test_slots_are_used_again_in_turn_for_thousands_of_requests(make_ring):
    ring = make_ring(slots=32, arena_tokens=1 << 13)
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        asked = 0
        while asked < 2000 or book.open:
            burst = min(port.free_slots(), 2000 - asked)
            prompts = [prompt(k % VOCAB, (k // 7) % VOCAB) for k in range(asked, asked + burst)]
            for text, handle in zip(
                prompts, port.submit_many([Request(p, max_tokens=1 + p[0] % 4) for p in prompts]), strict=True
            ):
                book.submitted(handle, text)
            asked += burst
            scheduler.turn()
            book.take(port.poll())
        assert all_empty(ring)
        assert port.counts()["slots_that_lost_log"] == 0
        assert port.counts()["protocol_violations"] == 0


def test_a_reader_that_overslept_goes_on_by_extents(make_ring):
    ring = make_ring(log_entries=64)
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring), AnswerBook(VOCAB)
        for k, handle in enumerate(port.submit_many([Request(prompt(k), max_tokens=60) for k in range(8)])):
            book.submitted(handle, prompt(k))
        scheduler.run(2)
        book.take(port.poll())
        scheduler.run(30)  # 240 entries: the log came round three times
        drain(port, scheduler, book)
        counts = port.counts()
        assert counts["log_overruns"] >= 1
        assert counts["extent_reads"] >= 8
        assert set(book.final.values()) == {Reason.LENGTH}


def test_log_entries_that_never_came_are_read_from_extents(ring):
    with attached(ring) as port:
        scheduler, book = ScriptedScheduler(ring, log_ends_at=7), AnswerBook(VOCAB)
        for k, handle in enumerate(port.submit_many([Request(prompt(k), max_tokens=30) for k in range(8)])):
            book.submitted(handle, prompt(k))
        drain(port, scheduler, book)
        assert port.counts()["slots_that_lost_log"] == 8


def test_two_front_ends_share_a_ring(make_ring):
    ring = make_ring(slots=64, front_ends=2)
    scheduler = ScriptedScheduler(ring)
    with attached(ring, 0) as first, attached(ring, 1) as second:
        books = [AnswerBook(VOCAB), AnswerBook(VOCAB)]
        for book, port in zip(books, (first, second), strict=True):
            for k, handle in enumerate(
                port.submit_many([Request(prompt(k), max_tokens=5) for k in range(32)])
            ):
                book.submitted(handle, prompt(k))
        for book, port in zip(books, (first, second), strict=True):
            drain(port, scheduler, book)
        assert not scheduler.violations


def test_a_living_front_end_keeps_its_place(ring):
    with attached(ring), pytest.raises(FrontEndHeld, match="process"):
        attach(ring, takeover=True, deadline_s=0.1)


def test_a_closed_port_leaves_its_place_free(ring):
    scheduler = ScriptedScheduler(ring)
    with attach(ring) as port:
        handle = port.submit(Request(prompt(1), max_tokens=1))
        scheduler.turn()
        assert port.poll()[0].handle == handle
    with attached(ring) as port:
        assert port.submit(Request(prompt(1), max_tokens=1)).slot == 0
        assert port.live() == 1


def test_close_reports_what_did_not_end(ring):
    port = attach(ring)
    port.submit(Request(prompt(1), max_tokens=1))
    assert port.close(deadline_s=0.05) == 1  # no scheduler runs
    assert port.close() == 0


def test_a_front_end_number_out_of_range(ring):
    with pytest.raises(ValueError, match="front ends 0 to 0"):
        attach(ring, 1)


def test_attach_waits_for_the_drain_with_a_deadline(ring):
    ring.view.fe_fence[at.F_FENCE] = 1
    with pytest.raises(AttachError, match="scheduler"):
        attach(ring, deadline_s=0.05)


def test_status_shows_the_heartbeat(ring):
    scheduler = ScriptedScheduler(ring)
    with attached(ring) as port:
        before = port.status().heartbeat
        scheduler.run(3)
        assert port.status().heartbeat == before + 3


def test_polling_slows_down_when_nothing_comes_and_wakes_with_a_submission(ring):
    with attached(ring) as port:
        assert port.idle_interval() == 0.0
        waits = []
        for _ in range(200):
            port.poll()
            waits.append(port.idle_interval())
        assert waits == sorted(waits)
        assert 0.0 < waits[-1] <= 0.01
        port.submit(Request(prompt(1), max_tokens=1))
        assert port.idle_interval() == 0.0

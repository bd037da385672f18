"""Policies: what each prefers, what a policy may not do, how it is made and named."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from numba import njit

from ring.recorder import Event
from scheduler import state as sc
from scheduler.build import combine, set_up
from scheduler.policies import SHIPPED, find, shipped
from scheduler.policy import FCFS, PolicyError, pack_name, policy, preset_name, unpack_name
from scheduler.policy_check import pointers
from scheduler.view import arrived_ns, max_tokens, recall, remember, ticket
from tests.scheduler.harness import COPY, Bench


def order_of_admission(bench: Bench) -> list[int]:
    """Slots in the order in which they were seated."""
    recorded = COPY.module("ring.recorder").entries(bench.ring.flight)
    return [entry.arguments[0] for entry in recorded if int(entry.event) == Event.ADMIT]


def backlog(name: str, requests: list[dict[str, int]], tokens: int = 12) -> list[int]:
    """Admissions of `requests`, all waiting while four others hold the seats."""
    bench = Bench(policy=name)
    for slot in range(4):
        bench.submit(slot, [5, 6, 7], tokens)
    bench.step(2)
    for slot, words in enumerate(requests, 4):
        length = words.pop("prompt", 3)
        bench.submit(slot, [9] * length, words.pop("count", 4), **words)
        bench.turn()
    bench.run_until_quiet()
    bench.check_nothing_held()
    return [slot - 4 for slot in order_of_admission(bench) if slot >= 4][: len(requests)]


def test_first_come_goes_first() -> None:
    assert backlog("fcfs", [{"count": n} for n in (9, 2, 5, 1)]) == [0, 1, 2, 3]


def test_shortest_job_goes_first_and_ties_go_by_ticket() -> None:
    assert backlog("sjf", [{"count": n} for n in (9, 2, 5, 2)]) == [1, 3, 2, 0]


def test_priority_zero_goes_first() -> None:
    requests = [{"Q_PRIORITY": 2}, {"Q_PRIORITY": 0}, {"Q_PRIORITY": 1}]
    assert backlog("priority", requests) == [1, 2, 0]


def test_earliest_deadline_goes_first_and_none_goes_last() -> None:
    requests = [{}, {"Q_DEADLINE_NS": 9_000_000}, {"Q_DEADLINE_NS": 5_000_000}]
    assert backlog("edf", requests) == [2, 1, 0]


def test_fair_share_takes_turns_between_tenants() -> None:
    # tenant 1 asks five times before tenant 2 asks twice
    requests = [{"Q_TENANT": 1, "prompt": 40} for _ in range(5)] + [{"Q_TENANT": 2, "prompt": 40}] * 2
    order = backlog("vtc", [dict(words) for words in requests])
    assert set(order[:4]) >= {5, 6}, f"tenant 2 waits behind all of tenant 1: {order}"


def test_least_remaining_preempts_a_long_answer_for_a_short_one() -> None:
    bench = Bench(policy="srpt")
    bench.state.policy[sc.P_MARGIN] //= 4
    for slot in range(4):
        bench.submit(slot, [5, 6], 200)
    bench.step(4)
    bench.submit(10, [5, 6], 2)
    bench.step(6)
    assert bench.state.core[sc.K_PREEMPTIONS] == 1
    assert len(bench.answer(10).tokens) == 2, "the short one should be done while the long ones go on"
    bench.run_until_quiet()
    assert all(len(bench.answer(slot).tokens) == 200 for slot in range(4))
    bench.check_nothing_held()


def test_no_pair_trades_a_seat_for_ever() -> None:
    bench = Bench(policy="srpt")
    for slot in range(12):
        bench.submit(slot, [5, 6], 60 + 10 * (slot % 3))
    bench.run_until_quiet()
    assert bench.state.core[sc.K_PREEMPTIONS] < 12


def test_multilevel_feedback_lets_newcomers_pass_long_answers() -> None:
    bench = Bench(policy="mlfq")
    bench.state.policy[sc.P_PARAMETERS] = 64  # a quantum
    bench.state.policy[sc.P_PARAMETERS + 3] = 100_000  # a seat is held for so many nanoseconds
    for slot in range(4):
        bench.submit(slot, [5, 6], 250)
    bench.step(230)  # each has used up 64 and 128 tokens
    bench.submit(10, [5, 6], 3)
    bench.step(8)
    assert len(bench.answer(10).tokens) == 3
    assert bench.state.core[sc.K_PREEMPTIONS] >= 1


def test_decode_first_lets_prompts_wait() -> None:
    for name, at_once in (("fcfs", True), ("decode-first", False)):
        bench = Bench(policy=name)
        bench.submit(0, [5], 100)
        bench.step(5)
        bench.submit(1, [6], 100)
        bench.step(8)
        assert (len(bench.answer(1).tokens) > 0) is at_once, name


def test_every_shipped_policy_compiles_and_has_its_own_name() -> None:
    for chosen in shipped():
        pointers(chosen)
    assert [chosen.name for chosen in shipped()] == list(SHIPPED)


def test_parameters_change_without_a_new_function() -> None:
    changed = find("sjf").with_parameters(token_ns=5)
    assert changed.parameters["token_ns"] == 5
    assert changed.key is find("sjf").key
    with pytest.raises(PolicyError, match="no parameter 'tokens'; it has token_ns"):
        find("sjf").with_parameters(tokens=5)


def test_names_travel_in_words() -> None:
    for name in ("fcfs", "x", "a" * 42, "my_module.sub:POLICY"):
        words = pack_name(name)
        assert len(words) == sc.NAME_WORDS
        assert all(0 <= word < 1 << 62 for word in words)
        assert unpack_name(words) == name
    for name in ("", "é", "a" * 43):
        with pytest.raises(PolicyError, match="ASCII"):
            policy(name=name, key=_first)


def test_a_policy_is_found_by_module_or_file(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from scheduler.policy import policy\nfrom scheduler.view import ticket\n"
        "def newest(view, request):\n    return -ticket(view, request)\n"
        "LIFO = policy(name='lifo', key=newest)\nOTHER = 3\n"
    )
    assert find(f"{file}:LIFO").name == "lifo"
    assert find("scheduler.policies.fair_share:POLICY") is find("vtc")
    with pytest.raises(PolicyError, match="shipped are fcfs, sjf"):
        find("nonesuch")
    with pytest.raises(PolicyError, match="no policy named 'OTHER'"):
        find(f"{file}:OTHER")
    with pytest.raises(PolicyError, match="does not exist"):
        find(f"{tmp_path}/none.py:X")


def test_a_policys_file_runs_once_and_is_nobody_elses_module(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "importable_policy.py"
    file.write_text(
        "from pathlib import Path\nfrom scheduler.policy import policy\nfrom scheduler.view import ticket\n"
        "Path(__file__).with_suffix('.runs').open('a').write('x')\n"
        "@policy\ndef newest(view, request):\n    return -ticket(view, request)\n"
    )
    pointers(find(f"{file}:newest"))
    assert file.with_suffix(".runs").read_text() == "x"
    namesake = tmp_path / "scheduler.py"
    namesake.write_text(
        "from scheduler.policy import policy\ndef helper(x):\n    return x\n"
        "@policy\ndef mine(view, request):\n    return helper(request)\n"
    )
    with pytest.raises(PolicyError, match="compile it with numba"):
        find(f"{namesake}:mine")


def test_combined_policies_act_as_the_one_in_force() -> None:
    bench = Bench()
    presets = [FCFS, find("sjf"), find("edf")]
    together = combine(presets)
    for chosen in presets:
        set_up(bench.state.words, chosen, presets)
        assert preset_name(bench.state, int(bench.state.policy[sc.P_ACTIVE])) == chosen.name
        bench.state.slots[7 * sc.SLOT_WORDS + sc.SL_ARRIVED] = 1000
        bench.state.slots[7 * sc.SLOT_WORDS + sc.SL_MAX_TOKENS] = 3
        memory = bench.state.hot, bench.state.words
        assert together.key(*memory, 7) == chosen.key(*memory, 7)
    with pytest.raises(PolicyError, match="one name"):
        combine([FCFS, FCFS])


# --- what a policy may not do ---


def _first(view, request):
    return ticket(view, request)


def _divides(view, request):
    tokens = max_tokens(view, request)
    return tokens / 2


def _answers_a_float(view, request):
    return math.sqrt(max_tokens(view, request))


def _has_a_fraction(view, request):
    return max_tokens(view, request) * 1.5


def _prints(view, request):
    print(request)
    return 0


def _makes_a_list(view, request):
    return [1, 2][request & 1]


def _writes_the_view(view, request):
    view.slots[0] = 1
    return 0


def _remembers_in_key(view, request):
    remember(view, 0, 1)
    return 0


def _raises(view, request):
    raise ValueError


def _helper(x):
    return x


def _calls_python(view, request):
    return _helper(request)


def _asks_what_is_not_there(view, request):
    return view.nosuch[0]


def _uses_an_unknown_name(view, request):
    return nonesuch  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


def _sometimes_nothing(view, request):
    if request > 3:
        return None
    return 1


def _one_argument(view):
    return 0


def _takes_a_keyword(view, request, *, weight=1):
    return weight


def _loops_for_ever(view, request):
    while True:
        if max_tokens(view, request) < 0:
            return 1


def _loops_while(view, request):
    left = max_tokens(view, request)
    while left > 0:
        left -= 0
    return left


def _loops_as_often_as_it_is_told(view, request):
    total = 0
    for round in range(arrived_ns(view, request)):
        total ^= round * round
    return total


def _loops_over_the_view(view, request):
    total = 0
    for word in view.slots:
        total += word
    return total


def _loops_by_a_choice(view, request):
    total = 0
    for k in range(9 if request else request):
        total += k
    return total


def _loops_in_loops(view, request):
    total = 0
    for outer in range(300):
        if outer & 1:
            for inner in range(min(request, ROUNDS)):
                total += inner
    return total


ROUNDS = 1000


@njit
def _spins(n):
    while n > 0:
        n -= 0
    return n


def _calls_one_that_spins(view, request):
    return _spins(request)


@njit
def _descends(n):
    return 0 if n <= 0 else 1 + _descends(n - 1)


def _calls_one_that_calls_itself(view, request):
    return _descends(request)


@njit
def _halves(n):
    return int(n * 0.5)


def _calls_one_with_a_fraction(view, request):
    return _halves(request)


@njit
def _counts(n):
    total = 0
    for k in range(ROUNDS):
        total += k * n
    return total


def _calls_one_that_loops_in_a_loop(view, request):
    total = 0
    for k in range(ROUNDS):
        total += _counts(k)
    return total


def _recalls_too_far(view, request):
    return recall(view, 127) + recall(view, 128)


def _is_huge(view, request):
    return 10**30


def _has_bit_63(view, request):
    return 9223372036854775808


async def _is_async(view, request):
    return 1


def _asks_a_module_for_what_it_lacks(view, request):
    return sc.NOSUCH  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "line", "reason"),
    [
        (_takes_a_keyword, 0, r"takes \(view, request, \*, weight=1\)"),
        (_loops_for_ever, 1, "a loop without a bound"),
        (_loops_while, 2, "a loop without a bound"),
        (_loops_as_often_as_it_is_told, 2, r"such as range\(min\(n, 64\)\)"),
        (_loops_over_the_view, 2, "a loop without a bound"),
        (_loops_by_a_choice, 2, "a loop without a bound"),
        (_loops_in_loops, 0, "300,000 rounds a call; 65,536 are allowed"),
        (_calls_one_that_loops_in_a_loop, 0, "1,000,000 rounds a call"),
        (_recalls_too_far, 1, r"recall\(\) has the indices 0 … 127, not 128"),
        (_is_huge, 1, "too large"),
        (_has_bit_63, 1, "does not fit"),
        (_asks_a_module_for_what_it_lacks, 0, "NOSUCH"),
        (_divides, 2, "use //"),
        (_answers_a_float, 0, "answers float64"),
        (_has_a_fraction, 1, "1.5 is not a whole number"),
        (_prints, 1, r"print\(\) does not exist in a kernel"),
        (_makes_a_list, 1, "a list allocates"),
        (_writes_the_view, 1, "read-only"),
        (_remembers_in_key, 1, "only may_admit may remember"),
        (_raises, 1, "nobody to raise to"),
        (_calls_python, 1, "compile it with numba.njit"),
        (_asks_what_is_not_there, 1, "the view has no 'nosuch'"),
        (_uses_an_unknown_name, 1, "'nonesuch' is not defined"),
        (_sometimes_nothing, 0, "must answer a whole number"),
        (_one_argument, 0, r"must take \(view, request\)"),
    ],
)
def test_what_a_kernel_cannot_do_is_told_with_its_line(function, line: int, reason: str) -> None:
    with pytest.raises(PolicyError, match=reason) as caught:
        pointers(policy(function))
    where = f"{__file__}:{function.__code__.co_firstlineno + line}"
    assert where in str(caught.value), "the message names the line"
    assert function.__name__ in str(caught.value)


@pytest.mark.parametrize(("function", "helper", "line", "reason"), [
    (_calls_one_that_spins, _spins, 2, "a loop without a bound"),
    (_calls_one_that_calls_itself, _descends, 0, r"_descends\(\) calls itself"),
    (_calls_one_with_a_fraction, _halves, 2, "0.5 is not a whole number"),
])  # fmt: skip
def test_what_a_policy_calls_may_do_no_more_than_the_policy(function, helper, line, reason) -> None:
    with pytest.raises(PolicyError, match=reason) as caught:
        policy(function)
    assert f"{__file__}:{helper.py_func.__code__.co_firstlineno + line}" in str(caught.value)


def test_a_loop_without_source_is_refused() -> None:
    module: dict = {}
    exec("def looping(view, request):\n    for k in range(request):\n        pass\n    return k", module)
    with pytest.raises(PolicyError, match="without its source"):
        policy(module["looping"])


LEVELS = (1, 4, 9)


def _loops_within_bounds(view, request):
    total = 0
    for limit in LEVELS:
        for k in range(len(LEVELS)):
            total += limit * k
    for k in range(sc.MEMORY - 1, -1, -1):
        total += recall(view, k)
    for k in range(1, min(request, 10), 3):
        total += k
    for k in range(max_tokens(view, request) % 7):
        if k > 3:
            break
        total += k
    for k in (2, 3):
        total += k
    return total


def test_loops_with_a_bound_are_taken() -> None:
    bounded = policy(_loops_within_bounds)
    assert pointers(bounded) == bounded.functions
    bench = Bench()
    bench.state.slots[5 * sc.SLOT_WORDS + sc.SL_MAX_TOKENS] = 10
    bench.state.policy[sc.P_MEMORY] = bench.state.policy[sc.P_MEMORY + sc.MEMORY - 1] = 100
    answer = bounded.key(bench.state.hot, bench.state.words, 5)
    assert answer == (1 + 4 + 9) * (0 + 1 + 2) + (100 + 100) + (1 + 4) + (0 + 1 + 2) + (2 + 3)


class _Holder:
    def method(self, view, request):
        return 1

    def __call__(self, view, request):
        return 1


@pytest.mark.parametrize(
    "wrong", [_Holder().method, _Holder(), _Holder, functools.partial(_first), len, 3, _is_async]
)
def test_what_is_no_plain_function_is_no_policy(wrong) -> None:
    with pytest.raises(PolicyError, match=r"must (be a function|not be async)"):
        policy(wrong)


WEIGHT = 3


def _weighs(view, request):
    return WEIGHT * max_tokens(view, request)


def test_a_value_that_changed_since_it_was_compiled_is_told(monkeypatch) -> None:
    weighs = policy(_weighs)
    pointers(weighs)
    pointers(weighs)
    monkeypatch.setitem(globals(), "WEIGHT", 5)
    with pytest.raises(PolicyError, match=r"'WEIGHT' has changed since it was compiled \(3 then, 5 now\)"):
        pointers(weighs)
    pointers(policy(_weighs))


def test_an_index_beyond_a_policys_words_is_folded_into_them() -> None:
    view, state = COPY.module("scheduler.view"), Bench().state
    before = state.policy.copy()
    view.remember(state, 1_000_003, 7)
    assert np.flatnonzero(state.policy != before).tolist() == [sc.P_MEMORY + 1_000_003 % sc.MEMORY]
    assert view.recall(state, 1_000_003) == view.recall(state, 1_000_003 - sc.MEMORY) == 7
    assert view.parameter(state, -1) == view.parameter(state, sc.PARAMETERS - 1)


@pytest.mark.parametrize(("text", "said"), [
    ("import nothing_there\n", "line 1: ModuleNotFoundError"), ("def x(:\n", "line 1: invalid syntax"),
    ("import sys\nsys.exit(3)\n", "line 2: SystemExit"), ("x = 1\ny = x / 0\n", "line 2: ZeroDivisionError"),
])  # fmt: skip
def test_a_policy_file_that_fails_is_told_in_a_line(tmp_path, text: str, said: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(PolicyError, match=f"cannot be loaded: {said}"):
        find(f"{file}:POLICY")


def test_parameters_must_be_whole_numbers_that_fit() -> None:
    with pytest.raises(PolicyError, match=r"weight=0\.5 must be a whole number"):
        policy(name="p", key=_first, parameters={"weight": 0.5})
    with pytest.raises(PolicyError, match="at most 16"):
        policy(name="p", key=_first, parameters={f"p{i}": i for i in range(17)})

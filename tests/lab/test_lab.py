"""Workloads, metrics, sweeps, the starvation check, plots."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numba import njit

from blink_numba import lab
from blink_numba.lab import plots
from blink_numba.lab.workloads import fit_lognormal
from scheduler.policies import find, shipped
from scheduler.simulator import Requests
from scheduler.view import arrived_ns, max_tokens, parameter, priority

TABLE = lab.table("h200-llama3-8b")
SPEC = TABLE.engine(seats=8, max_model_len=2048)
SHORT = lab.lognormal(200, 60, longest=2048)


def test_gamma_gaps_have_their_variation() -> None:
    for variation in (0.3, 1.0, 3.0):
        gaps = np.diff(lab.gamma(10, 50_000, variation, lab.fixed(1, 1), seed=1).arrive)
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)
        assert gaps.mean() == pytest.approx(1e8, rel=0.05)


def test_a_mean_outside_its_bounds_cannot_be_fitted() -> None:
    with pytest.raises(ValueError, match="cannot be had"):
        fit_lognormal(5000, 1.0, 1, 4096)


def test_mooncake_and_azure_traces_are_read(tmp_path) -> None:
    mooncake = tmp_path / "trace.jsonl"
    mooncake.write_text(
        '{"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        '{"timestamp": 1000, "input_length": 10, "output_length": 20, "hash_ids": []}\n'
    )
    requests = lab.load_trace(mooncake, longest=4096)
    assert requests.arrive.tolist() == [0, 2_000_000_000]
    assert requests.prompt.tolist() == [10, 3596]
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    requests = lab.load_trace(azure, speed=2.0)
    assert requests.output.tolist() == [44, 109]
    assert requests.arrive[1] == pytest.approx(4.314579e9 / 2, rel=1e-5)


def test_what_is_no_trace_is_told_with_its_line(tmp_path) -> None:
    bad = tmp_path / "trace.jsonl"
    bad.write_text('{"timestamp": 1, "input_length": 3, "output_length": 4}\n{"timestamp": 2}\n')
    with pytest.raises(ValueError, match=r"trace.jsonl:2 is not a line of a Mooncake trace"):
        lab.load_trace(bad)
    other = tmp_path / "x.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not an Azure LLM trace"):
        lab.load_trace(other)


MOONCAKE = '{"timestamp": 1, "input_length": 3, "output_length": 4}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"


@pytest.mark.parametrize(("name", "line"), [
    ("x.jsonl", '{"timestamp": NaN, "input_length": 3, "output_length": 4}'),
    ("x.jsonl", '{"timestamp": 1e400, "input_length": 3, "output_length": 4}'),
    ("x.jsonl", '{"timestamp": 2, "input_length": -3, "output_length": 4}'),
    ("x.jsonl", '{"timestamp": 2, "input_length": 1e30, "output_length": 4}'),
    ("x.jsonl", '{"timestamp": 2, "input_length": 3, "output_length": true}'),
    ("x.jsonl", "[1, 2]"),
    ("x.jsonl", '{"timestamp": 2, "inp'),
    ("x.csv", "2023-11-16 18:15:50.9951690,396"),
    ("x.csv", "2023-11-16 18:15:50.9951690,x,1"),
    ("x.csv", "yesterday,1,1"),
    ("x.csv", "2023-11-16 18:15:50.9951690,-1,1"),
    ("x.csv", "2023-11-16 18:15:50.9951690,99999999999999999999999,1"),
])  # fmt: skip
def test_a_malformed_line_of_a_trace_is_named(tmp_path, name: str, line: str) -> None:
    file = tmp_path / name
    good = MOONCAKE if name == "x.jsonl" else AZURE
    file.write_text("\ufeff" + good)
    assert len(lab.load_trace(file)) == 1, "a byte order mark is no error"
    file.write_text(good + line + "\n")
    with pytest.raises(ValueError, match=rf"{name}:{good.count(chr(10)) + 1} is not a line"):
        lab.load_trace(file)


@pytest.mark.parametrize("options", [{"speed": 0}, {"speed": -1.0}, {"speed": float("nan")}, {"longest": 1}])
def test_a_trace_is_not_scaled_by_nonsense(tmp_path, options) -> None:
    (tmp_path / "x.csv").write_text(AZURE)
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        lab.load_trace(tmp_path / "x.csv", **options)
    with pytest.raises(ValueError, match=r"nothing.csv cannot be read"):
        lab.load_trace(tmp_path / "nothing.csv")
    (tmp_path / "y.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not text"):
        lab.load_trace(tmp_path / "y.csv")


@pytest.mark.parametrize("make", [
    lambda x: lab.poisson(x, 5), lambda x: lab.gamma(1.0, 5, x), lambda x: lab.poisson(1.0, 5, deadline_s=x),
    lambda x: lab.closed_loop(1, 5, think_s=x), lambda x: lab.lognormal(5, 5, prompt_sigma=x),
    lambda x: lab.Requests.of([x], 1, 1),
])  # fmt: skip
@pytest.mark.parametrize("value", [float("nan"), -1.0, float("inf")])
def test_a_workload_is_not_made_of_nonsense(make, value) -> None:
    with pytest.raises(ValueError, match=r"must|cannot"):
        make(value)


def test_metrics_of_a_hand_made_case() -> None:
    table = lab.constant(2000.0, prefill_us=5000.0)
    spec = table.engine(seats=1, max_model_len=64, prefill_tokens=(16,))
    outcome = lab.simulate(Requests.of([0, 0], 10, 6), spec, table.times(lab.Gap(0.001, 0.001)))
    found = lab.Metrics.of(outcome, warmup=0.0, slo=lab.Slo(ttft_ms=10, tpot_ms=3))
    assert found.ttft == pytest.approx([5, 20], abs=0.001)
    assert found.tpot == pytest.approx([2, 2], abs=0.001)
    assert found.e2e == pytest.approx([15, 30], abs=0.001)
    assert found.queueing == pytest.approx([0, 15], abs=0.001)
    assert found.throughput == pytest.approx(12 / 0.030, rel=1e-3)
    assert found.goodput == pytest.approx(1 / 0.030, rel=1e-3)
    assert found.itl[50.0] == pytest.approx(2.0, rel=0.05)
    assert found.utilisation == pytest.approx(1.0, abs=1e-3)


def test_fair_share_is_fairer_than_first_come_to_a_small_tenant() -> None:
    rng = np.random.default_rng(2)
    arrive = np.sort(rng.uniform(0, 60e9, 2000))
    tenant = np.where(rng.random(2000) < 0.9, 0, 1)
    requests = Requests.of(arrive, 200, 100, tenant=tenant)
    small = {}
    for name in ("fcfs", "vtc"):
        outcome = lab.simulate(requests, SPEC, TABLE.times(), find(name))
        small[name] = ((outcome.first - requests.arrive)[tenant == 1]).mean()
        assert 0 < lab.Metrics.of(outcome).fairness <= 1
    assert small["vtc"] < small["fcfs"] / 4


def test_shortest_job_first_lowers_the_mean_under_load() -> None:
    requests = lab.poisson(22, 2000, SHORT, seed=3)
    mean = {
        name: lab.Metrics.of(lab.simulate(requests, SPEC, TABLE.times(), find(name))).e2e.mean()
        for name in ("fcfs", "sjf", "srpt")
    }
    assert mean["sjf"] < mean["fcfs"]
    assert mean["srpt"] < mean["fcfs"]


@pytest.mark.parametrize(("pads", "prefill_ms"), [(True, 64.0), (False, 42.0)])
def test_a_step_takes_as_long_as_its_graph_or_as_its_rows(pads, prefill_ms) -> None:
    """A prompt of 42 tokens in a graph of 64: a GPU computes all of them, the CPU engine 42."""
    table = replace(
        lab.table("cpu-smollm2"),
        pads=pads,
        prefill_tokens=[1.0, 256.0],
        prefill_us=[[1e3, 1e3], [256e3, 256e3]],
    )
    spec = table.engine(seats=8, max_model_len=512, prefill_tokens=(16, 32, 64, 128, 256))
    outcome = lab.simulate(Requests.of([0], 42, 1), spec, table.times(lab.Gap(0.001, 0.001)))
    assert lab.Metrics.of(outcome, warmup=0.0).ttft[0] == pytest.approx(prefill_ms, abs=0.1)


def test_sweep_resumes_where_it_stopped(tmp_path) -> None:
    calls = []

    def workload(load: float, seed: int) -> Requests:
        calls.append((load, seed))
        return lab.poisson(load, 200, SHORT, seed=seed)

    options = {"table": TABLE, "spec": SPEC, "results": tmp_path / "rows.jsonl", "progress": False}
    policies = [find("fcfs"), find("sjf")]
    first = lab.sweep(policies, [2.0, 4.0], workload, seeds=(0, 1), **options)
    assert len(first) == len(calls) == 8
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"key": "cut off')
    again = lab.sweep(policies, [2.0, 4.0], workload, seeds=(0, 1), **options)
    assert again == first
    assert len(calls) == 8
    more = lab.sweep([find("sjf").with_parameters(token_ns=1)], [2.0], workload, seeds=(0,), **options)
    assert len(calls) == 9, "other parameters are another simulation"
    assert more[0]["policy"] == "sjf"
    assert json.dumps(first), "rows are plain"


def test_a_sweep_notices_what_its_functions_use(tmp_path) -> None:
    calls = []
    options = {"table": TABLE, "spec": SPEC, "results": tmp_path / "rows.jsonl", "progress": False}

    def run(count: int, weight: int) -> dict:
        def workload(load: float, seed: int) -> Requests:
            calls.append(load)
            return lab.poisson(load, count, SHORT, seed=seed)

        def weighed(view, request):
            return weight * max_tokens(view, request)

        return lab.sweep([lab.policy(weighed)], [22.0], workload, **options)[0]

    first = run(200, 1)
    assert run(200, 1) == first
    assert len(calls) == 1
    assert run(200, -1) != first, "the policy's weight is another one"
    assert run(201, 1) != first, "the workload has a request more"
    assert len(calls) == 3


def test_a_sweep_reads_past_what_is_no_row(tmp_path) -> None:
    file, calls = tmp_path / "rows.jsonl", []

    def workload(load: float, seed: int) -> Requests:
        calls.append(load)
        return lab.poisson(load, 50, SHORT, seed=seed)

    file.write_bytes(b'[1, 2]\n{"no": "key"}\n\xff\xfe\nnull\n{"key": "cut o')
    options = {"table": TABLE, "spec": SPEC, "results": file, "progress": False}
    rows = lab.sweep([lab.FCFS], [2.0, 4.0], workload, **options)
    assert lab.sweep([lab.FCFS], [2.0, 4.0], workload, **options) == rows
    assert len(calls) == 2


def _divides_by_nothing(view, request):
    return arrived_ns(view, request) + 7 // parameter(view, 0)


BESIDE = np.arange(2)


def _reads_beside(view, request):
    return arrived_ns(view, request) + BESIDE[priority(view, request)]


@njit
def _seventh(divisor):
    return 7 // divisor


def _calls_one_that_divides(view, request):
    return arrived_ns(view, request) + _seventh(parameter(view, 0))


@pytest.mark.parametrize(("key", "said"), [
    (_divides_by_nothing, "division by zero"), (_reads_beside, "out of bounds"),
    (_calls_one_that_divides, "division by zero"),
])  # fmt: skip
def test_arithmetic_that_a_kernel_does_not_notice_is_found_by_the_check(key, said) -> None:
    with pytest.raises(lab.PolicyError, match=f"{said}.*{key.__code__.co_firstlineno}"):
        lab.check(lab.policy(key, parameters={"divisor": 0}))


def test_a_shipped_policys_parameters_are_checked_too() -> None:
    with pytest.raises(lab.PolicyError, match="division by zero"):
        lab.check(find("mlfq").with_parameters(prompt_share=0))


def _nobody(view, request):
    return max_tokens(view, request) < 0


def test_a_policy_that_admits_nobody_fails_its_check() -> None:
    with pytest.raises(lab.PolicyError, match="may_admit says no"):
        lab.check(lab.policy(name="nobody", may_admit=_nobody))


@pytest.mark.parametrize("policy", shipped(), ids=lambda policy: policy.name)
def test_no_shipped_policy_starves(policy) -> None:
    found = lab.check(policy)
    assert found.bound is not None
    assert found.ratio <= found.bound


def _small_first(view, request):
    return max_tokens(view, request)


def _urgent_first(view, request):
    return priority(view, request)


def _newest_first(view, request):
    return -arrived_ns(view, request)


@pytest.mark.parametrize("key", [_small_first, _urgent_first, _newest_first])
def test_a_policy_that_starves_is_told_who_waited(key) -> None:
    with pytest.raises(lab.PolicyStarves, match="later ones overtook it"):
        lab.check(lab.policy(key))
    found = lab.check(lab.policy(key, bound=None))
    assert found.ratio > 8


def test_roofline_grows_with_batch_context_and_prompt() -> None:
    table = lab.roofline(parameters=8e9, kv_bytes_per_token=131_072, memory_gb_s=4000, tflops=600)
    decode, prefill = np.array(table.decode_us), np.array(table.prefill_us)
    assert (np.diff(decode, axis=1) > 0).all()
    assert (np.diff(decode, axis=0) >= 0).all()
    assert (np.diff(prefill, axis=0) >= 0).all()
    assert decode[0, 0] == pytest.approx(300 + 4000, rel=0.01)


def test_gap_has_its_mean_and_percentile() -> None:
    quantiles = lab.GAPS["host-loaded"].quantiles()
    assert quantiles.mean() == pytest.approx(750e3, rel=0.03)
    assert np.percentile(quantiles, 99) == pytest.approx(7368e3, rel=0.03)
    with pytest.raises(ValueError, match="no launch strategy 'warp'"):
        TABLE.times("warp")


def test_tables_are_found_by_name_and_saved(tmp_path) -> None:
    with pytest.raises(ValueError, match="shipped are"):
        lab.table("nonesuch")
    TABLE.save(tmp_path / "mine.json")
    assert lab.table(tmp_path / "mine.json") == TABLE


def test_plots_draw_what_they_are_given() -> None:
    import matplotlib

    matplotlib.use("Agg")
    requests = lab.poisson(6, 300, SHORT, seed=1)
    outcomes = {
        name: lab.simulate(requests, SPEC, TABLE.times(), find(name), every=1) for name in ("fcfs", "sjf")
    }
    rows = lab.sweep([find("fcfs")], [2.0, 4.0], lambda load, seed: lab.poisson(load, 200, SHORT, seed=seed),
                     table=TABLE, spec=SPEC, progress=False)  # fmt: skip
    assert len(plots.load_curves(rows).axes[0].lines) == 1
    assert len(plots.latency_curves(outcomes).axes[0].lines) == 2
    assert len(plots.gap_histogram(outcomes).axes[0].patches) == 2
    assert len(plots.timeline(outcomes["fcfs"]).axes) == 3
    assert len(plots.bars({"a": {"x": 1.0, "y": 2.0}}, "ms").axes[0].patches) == 2
    with pytest.raises(ValueError, match="no series"):
        plots.timeline(lab.simulate(requests, SPEC, TABLE.times()))

"""The CUDA engine on a GPU: against a float64 forward, and against itself bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

from blink_numba.engines import EngineLimits
from blink_numba.engines.cuda import CudaEngine
from blink_numba.engines.cuda.buffers import device_zeros
from blink_numba.engines.cuda.gemm import ADD_FLOAT32, BF16, FLOAT32
from blink_numba.engines.cuda.weights import to_bf16
from blink_numba.models import SHAPES, ModelConfig, SyntheticModel
from graphs._cuda import cuda, new_stream
from graphs.capture import GraphSet
from graphs.grid import shapes
from ring.logprobs import unpack_records
from tests.cuda_reference import as_float, forward
from tests.cuda_steps import OFF, Driver
from tests.logprobs import check_record

RNG = np.random.default_rng(12)
LIMITS = EngineLimits(
    seats=16, max_model_len=1024, kv_tokens=16 * 1024, prefill_tokens=512, prefill_sequences=8, block_size=16
)
SMALL = ModelConfig(
    architecture="llama", vocab_size=1000, hidden_size=256, intermediate_size=512, num_layers=3, num_heads=6,
    num_kv_heads=2, head_dim=64, tie_word_embeddings=True, max_position=1024, eos_ids=(1,),
)  # fmt: skip
VARIANTS = {
    "llama": SMALL,
    "qwen2": dataclasses.replace(SMALL, architecture="qwen2", qkv_bias=True, head_dim=128, num_heads=8),
    "qwen3": dataclasses.replace(
        SMALL, architecture="qwen3", qk_norm=True, head_dim=128, num_heads=8, tie_word_embeddings=False
    ),
    "smollm2": dataclasses.replace(SHAPES["smollm2"], num_layers=3, max_position=1024),
}


def make_engine(config: ModelConfig, **options) -> tuple[SyntheticModel, Driver]:
    """An engine of a synthetic model, driven kernel by kernel on a stream."""
    model = SyntheticModel("synthetic", config, scale=0.06)
    engine, stream = CudaEngine(model, LIMITS, **options), new_stream()

    def run(kind: int, shape: int) -> None:
        cuda.synchronize()
        engine.enqueue(kind, shape, stream)
        stream.synchronize()

    return model, Driver(engine, run)


def tokens(count: int, config: ModelConfig = SMALL) -> list[int]:
    return RNG.integers(2, config.vocab_size, count).tolist()


def error(logits: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("batch_invariant", [False, True], ids=["cublas", "invariant"])
@pytest.mark.parametrize("name", VARIANTS)
def test_follows_the_reference(name, batch_invariant):
    config = VARIANTS[name]
    model, driver = make_engine(config, batch_invariant=batch_invariant)
    prompts = [tokens(37, config), tokens(5, config), tokens(70, config)]
    expected = [forward(model, prompt) for prompt in prompts]
    for seat in range(3):
        driver.seat(seat)
    first = driver.prefill([(seat, prompt[:-2], 0, True) for seat, prompt in enumerate(prompts)])
    for row, reference in zip(first, expected):
        assert error(row, reference[-3]) < 2e-2
    for back in (2, 1):
        rows = [(seat, prompt[-back], len(prompt) - back) for seat, prompt in enumerate(prompts)]
        for row, reference in zip(driver.decode(rows), expected):
            assert error(row, reference[-back]) < 2e-2
    assert driver.fault == 0
    assert [driver.token(seat) for seat in range(3)] == driver.decode(rows).argmax(-1).tolist()


def test_batch_invariant_logits_are_equal_bit_for_bit():
    """Over chunk borders of attention (256), all batches, packed and chunked prefills."""
    _, driver = make_engine(SMALL, batch_invariant=True)
    for seat in range(16):
        driver.seat(seat)
    prompt, last = tokens(500), 499
    whole = driver.prefill([(0, prompt, 0, True)])[0]
    driver.prefill([(1, prompt[:100], 0, False), (2, tokens(33), 0, True)])
    driver.prefill([(3, tokens(7), 0, True), (1, prompt[100:359], 100, False)])
    packed = driver.prefill([(4, tokens(90), 0, True), (1, prompt[359:], 359, True)])[1]
    np.testing.assert_array_equal(packed, whole)
    driver.prefill([(0, prompt[:last], 0, False)])
    for others in (0, 1, 3, 9, 15):
        rows = [(seat, 5 + seat, 20) for seat in range(1, 1 + others)]
        logits = driver.decode([*rows, (0, prompt[last], last)])
        np.testing.assert_array_equal(logits[others], whole)


def test_greedy_answers_alone_and_together_are_equal():
    _, driver = make_engine(SMALL, batch_invariant=True)
    prompts = [tokens(count) for count in (3, 17, 40, 64, 5, 90, 250, 31)]

    def answers(together: list[list[int]]) -> list[list[int]]:
        driver.prefill([(seat, prompt, 0, True) for seat, prompt in enumerate(together)])
        said = [[driver.token(seat)] for seat in range(len(together))]
        for step in range(40):
            driver.decode(
                [(seat, said[seat][-1], len(prompt) + step) for seat, prompt in enumerate(together)]
            )
            for seat, answer in enumerate(said):
                answer.append(driver.token(seat))
        return said

    for seat in range(8):
        driver.seat(seat)
    assert answers(prompts) == [answers([prompt])[0] for prompt in prompts]


def test_sampling_depends_on_seed_and_position_alone():
    _, driver = make_engine(SMALL, batch_invariant=True)
    for seat, seed in enumerate((5, 6, 5)):
        driver.seat(seat, (1_500_000, 950_000, 50, seed, 0))
    prompt, drawn = tokens(12), []
    driver.prefill([(seat, prompt, 0, True) for seat in range(3)])
    drawn.append([driver.token(seat) for seat in range(3)])
    for step in range(30):
        driver.decode([(seat, drawn[-1][seat], 12 + step) for seat in range(3)])
        drawn.append([driver.token(seat) for seat in range(3)])
    first, other, again = zip(*drawn)
    assert first == again
    assert first != other


@pytest.mark.parametrize("host_io", [False, True], ids=["device", "host"])
def test_log_probabilities_are_those_of_the_logits(host_io):
    """Of rows that ask and rows that do not, in prefill and decode, whatever they sample by."""
    config = dataclasses.replace(SHAPES["smollm2"], num_layers=2, max_position=1024)
    _, driver = make_engine(config, host_io=host_io)
    asks = [(0, 21), (1_000_000, 6), (0, 0), (700_000, 1)]
    for seat, (temperature, pairs) in enumerate(asks):
        driver.seat(seat, (temperature, OFF, 0, seat, 0, pairs))
    prompts = [tokens(9 + seat, config) for seat in range(len(asks))]

    def check(logits: np.ndarray) -> None:
        for seat, (_, pairs) in enumerate(asks):
            if pairs:
                record = unpack_records(driver.record(seat, pairs)[None])[0]
                check_record(record, driver.token(seat), logits[seat], pairs - 1)

    check(driver.prefill([(seat, prompt, 0, True) for seat, prompt in enumerate(prompts)]))
    for step in range(3):
        rows = [(seat, driver.token(seat), 9 + seat + step) for seat in range(len(asks))]
        check(driver.decode(rows))
    assert driver.fault == 0


def test_long_vocabulary_draws_follow_the_frequencies():
    """A flat row: every token is drawn about as often as its neighbours."""
    from blink_numba.engines.cuda import sample
    from graphs.step_io import RECORD_WORDS, SAMPLING_WORDS

    rows, vocab = 4096, 8
    words = np.zeros(rows * SAMPLING_WORDS, np.int64)
    words[0::SAMPLING_WORDS], words[1::SAMPLING_WORDS], words[3::SAMPLING_WORDS] = OFF, OFF, np.arange(rows)
    out = device_zeros((rows,), np.int64)
    sample.sample[rows, sample.THREADS](
        device_zeros((rows, vocab), np.float32), cuda.to_device(np.arange(rows, dtype=np.int32)),
        device_zeros((rows,), np.int32), cuda.to_device(words), device_zeros((1,), np.int32),
        device_zeros((1,), np.int64), device_zeros((16,), np.int64), out,
        device_zeros((2 * rows * RECORD_WORDS,), np.int64),
    )  # fmt: skip
    counts = np.bincount(out.copy_to_host(), minlength=vocab)
    assert (np.abs(counts - rows / vocab) < 5 * np.sqrt(rows / vocab)).all(), counts


@pytest.mark.parametrize("columns", [328, 259])  # of tiny's vocabulary: odd
@pytest.mark.parametrize("rows", [1, 3, 16, 33, 64, 300])
def test_library_and_own_products_agree_with_float64(rows, columns):
    from blink_numba.engines.cuda.blas import CublasLt
    from blink_numba.engines.cuda.products import InvariantProducts

    k, stream = 576, new_stream()
    x, w = to_bf16(RNG.standard_normal((rows, k))), to_bf16(RNG.standard_normal((columns, k)))
    exact = as_float(x).astype(np.float64) @ as_float(w).astype(np.float64).T
    for products in (CublasLt(), InvariantProducts()):
        for store, tolerance in ((BF16, 5e-3), (FLOAT32, 1e-5), (ADD_FLOAT32, 1e-5)):
            start = np.full((rows, columns), 3, np.uint16 if store == BF16 else np.float32)
            device = [cuda.to_device(x), cuda.to_device(w), cuda.to_device(start)]
            products.prepare(device[0], [device[1]], device[2], store, stream)
            device[2].copy_to_device(start)
            products.multiply(*device, store, stream)
            stream.synchronize()
            got = device[2].copy_to_host()
            got = as_float(got) if store == BF16 else got
            expected = exact + 3 if store == ADD_FLOAT32 else exact
            assert error(got, expected) < tolerance, (type(products).__name__, store)
        products.close()


def test_a_scheduler_on_the_host_sees_tokens_and_done():
    _, driver = make_engine(SMALL, host_io=True)
    _, other = make_engine(SMALL)
    for each in (driver, other):
        each.seat(3)
    prompt = tokens(20)
    np.testing.assert_allclose(
        driver.prefill([(3, prompt, 0, True)]), other.prefill([(3, prompt, 0, True)]), rtol=1e-3, atol=1e-3
    )
    assert driver.token(3) == other.token(3)


def test_captured_graphs_do_what_the_stream_does():
    model, direct = make_engine(SMALL, batch_invariant=True)
    captured = CudaEngine(model, LIMITS, batch_invariant=True)
    stream = new_stream()
    graphs = GraphSet(captured, stream, device_launch=False)
    order, turns = shapes(captured.spec), {}

    def run(kind: int, shape: int) -> None:
        cuda.synchronize()
        graph = order.index((kind, shape))
        turns[graph] = 1 - turns.get(graph, 1)
        graphs.launch(graph, turns[graph], stream)
        stream.synchronize()

    replayed = Driver(captured, run)
    prompt = tokens(45)
    for each in (direct, replayed):
        each.seat(2)
    for step in (lambda d: d.prefill([(2, prompt, 0, True)]), lambda d: d.decode([(2, 9, 45)]),
                 lambda d: d.decode([(2, 8, 46)])):  # fmt: skip
        np.testing.assert_array_equal(step(replayed), step(direct))
        assert replayed.token(2) == direct.token(2)
    assert min(graphs.node_counts) > 3 * 8
    graphs.close()

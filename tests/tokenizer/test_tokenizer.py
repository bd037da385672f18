"""The tokenizer's API, on a vocabulary that needs no file."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer import vocabularies
from tests.tokenizer.texts import random_text, texts
from tokenizer import AddedToken, Tokenizer, TokenizerError, byte_level, load
from tokenizer.normalize import nfc

_TINY = byte_level()


def test_ids_are_int32_and_own_their_memory() -> None:
    first = _TINY.encode("abc")
    kept = first.copy()
    _TINY.encode("xyzxyz")
    assert first.dtype == np.int32
    assert np.array_equal(first, kept)


def test_str_and_bytes_agree() -> None:
    assert np.array_equal(_TINY.encode("héllo"), _TINY.encode("héllo".encode()))


@pytest.mark.parametrize("text", [b"\xff", b"a\xed\xa0\x80", "\ud800"])
def test_invalid_unicode_is_an_error(text: str | bytes) -> None:
    with pytest.raises(TokenizerError, match="not valid Unicode"):
        _TINY.encode(text)


def test_other_types_are_an_error() -> None:
    with pytest.raises(TokenizerError, match="not int"):
        _TINY.encode(7)  # type: ignore[arg-type]


def test_special_text_is_plain_text_unless_asked_for() -> None:
    end = _TINY.id_of("<|im_end|>")
    assert end not in _TINY.encode("a<|im_end|>")
    assert _TINY.encode("a<|im_end|>", parse_special=True).tolist() == [ord("a"), end]


def test_ordinary_added_tokens_match_always() -> None:
    ours = Tokenizer(_TINY.vocabulary.with_added([AddedToken(300, "<tool>", special=False)]))
    assert ours.encode("<tool><|im_end|>").tolist()[0] == 300
    assert ours.decode([300]) == "<tool>"


def test_truncation_is_reported() -> None:
    cut = _TINY.encode_report("abcdef", max_tokens=4)
    assert cut.ids.tolist() == list(b"abcd")
    assert cut.truncated
    assert cut.total == 6
    whole = _TINY.encode_report("abcdef", max_tokens=6)
    assert len(whole.ids) == 6
    assert not whole.truncated
    with pytest.raises(TokenizerError, match="negative"):
        _TINY.encode("a", max_tokens=-1)


def test_begin_token_is_added_when_asked_for() -> None:
    llama3 = load(vocabularies.path("llama3"))
    assert llama3.encode("hi", add_special=True).tolist() == [llama3.bos_id, *llama3.encode("hi").tolist()]
    assert llama3.encode_report("hi", add_special=True, max_tokens=1).truncated


def test_ids_out_of_range_are_an_error() -> None:
    for token in (-1, _TINY.vocab_size):
        with pytest.raises(TokenizerError, match="not in the vocabulary"):
            _TINY.decode([token])
        with pytest.raises(TokenizerError, match="not in the vocabulary"):
            _TINY.stream_decoder().push(token)
    with pytest.raises(TokenizerError, match="no token"):
        _TINY.id_of("<|nothing|>")


def test_decoding_leaves_special_tokens_out_unless_asked() -> None:
    ids = _TINY.encode("a<|im_end|>b", parse_special=True)
    assert _TINY.decode(ids) == "ab"
    assert _TINY.decode(ids, skip_special=False) == "a<|im_end|>b"


@settings(deadline=None)
@given(text=texts())
def test_decode_inverts_encode(text: str) -> None:
    assert _TINY.decode(_TINY.encode(text)) == text


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, _TINY.vocab_size - 1), max_size=60), skip=st.booleans())
def test_stream_pieces_join_to_the_decoded_text(ids: list[int], skip: bool) -> None:
    stream = _TINY.stream_decoder(skip_special=skip)
    expected = _TINY.decode(ids, skip_special=skip)
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == expected
    assert stream.push_many(ids) + stream.flush() == expected  # the decoder can be used again


def test_batch_on_threads_gives_the_ids_of_each_text() -> None:
    ours = load(vocabularies.path("smollm2"))
    batch = [random_text(seed, 300) for seed in range(40)] + ["", "a" * 100_000]
    for threads in (1, 3):
        for text, ids in zip(batch, ours.encode_batch(batch, threads=threads)):
            assert np.array_equal(ids, ours.encode(text))
    with pytest.raises(TokenizerError, match="threads"):
        ours.encode_batch(batch, threads=0)


def test_threads_do_not_disturb_each_other() -> None:
    ours = load(vocabularies.path("smollm2"))
    samples = [random_text(seed, 2000) for seed in range(8)]
    expected = [ours.encode(s).tolist() for s in samples]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(60):
            if ours.encode(samples[n]).tolist() != expected[n]:
                wrong.append(n)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert not worker.is_alive()
    assert not wrong


def test_texts_larger_than_a_workspace() -> None:
    text = "word " * 50_000
    assert _TINY.decode(_TINY.encode(text)) == text


def test_normalisation_composes() -> None:
    qwen = load(vocabularies.path("qwen2"))
    assert np.array_equal(qwen.encode("e\u0301"), qwen.encode("é"))
    assert np.array_equal(
        qwen.encode("e\u0301<|im_end|>", parse_special=True), [*qwen.encode("é"), qwen.id_of("<|im_end|>")]
    )


def test_marks_that_the_reference_does_not_know_stay_in_place() -> None:
    # U+0898 is of Unicode 14; canonical ordering would move the U+0316 before it.
    assert nfc("x\u0898\u0316") == "x\u0898\u0316"
    assert nfc("x\u0300\u0316") == "x\u0316\u0300"

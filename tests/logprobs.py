"""What log-probabilities must be, whichever engine computed them."""

from __future__ import annotations

import numpy as np

from ring.logprobs import TokenLogprobs


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64; what is all but certain keeps its digits."""
    wide = logits.astype(np.float64)
    largest = int(np.argmax(wide))
    others = np.exp(np.delete(wide, largest) - wide[largest]).sum()
    return wide - wide[largest] - np.log1p(others)


def check_record(record: TokenLogprobs, token: int, logits: np.ndarray, alternatives: int) -> None:
    """A record of `token`, with so many alternatives, against the row of logits it came from."""
    exact = log_softmax(logits)
    close = {"rtol": 1e-4, "atol": 1e-30}
    np.testing.assert_allclose(record.logprob, exact[token], **close)
    assert record.rank == 1 + int((logits > logits[token]).sum())
    ids = [other for other, _ in record.likeliest]
    assert len(ids) == len(set(ids)) == alternatives
    values = np.array([value for _, value in record.likeliest])
    np.testing.assert_allclose(values, np.sort(exact)[::-1][:alternatives], **close)
    np.testing.assert_allclose(values, exact[ids], **close)
    assert (np.diff(values) <= 0).all(), "the likeliest first"

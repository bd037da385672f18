from __future__ import annotations

import openai
import pytest

from blink_numba.bench.instant import InstantEngine
from tests.frontend.harness import ADMIN_KEY, Running, ring_name

EOS = (257, 258)  # of the `tiny` vocabulary


@pytest.fixture(scope="session")
def instant():
    """An engine that echoes each prompt, a token a step."""
    # a step of no time at all would keep a core busy until the session's end
    with InstantEngine(
        ring_name(), slots=256, max_model_len=2048, vocab_size=259, eos_ids=EOS, step_ns=1
    ) as engine:
        yield engine


@pytest.fixture(scope="session")
def server(instant):
    """A front end before it."""
    with Running(instant.ring_name, admin_api_key=ADMIN_KEY) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60.0) as client:
        yield client

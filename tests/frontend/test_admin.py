"""Swapping the policy over HTTP: who may, what may be named, and that no request is lost by it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from typer.testing import CliRunner, Result

from blink_numba.cli import app
from blink_numba.config import ServeConfig
from blink_numba.frontend.admin import swap
from blink_numba.frontend.errors import ApiError
from blink_numba.frontend.exchange import ADMIN_PATH
from blink_numba.frontend.openapi import document
from blink_numba.serving import Serving
from ring import layout as at
from ring.layout import RingGeometry
from ring.memory import RingMemory
from scheduler.policies import SHIPPED
from scheduler.state import NAME_WORDS
from tests.frontend.harness import ADMIN_KEY, Running, ring_name, wait_until
from tests.frontend.test_load import Asked, answers_alone, stream

ORDINARY_KEY = "anybody"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
schema = schemathesis.openapi.from_dict(document(admin=True)).include(path=ADMIN_PATH)


@pytest.fixture(scope="module")
def serving():
    """`tiny` behind `blink-numba serve`, with a policy of its owner's."""
    config = ServeConfig(
        model="tiny", backend="cpu", port=0, ring=ring_name(), slots=64, max_num_seqs=4, kv_tokens=2048,
        max_model_len=256, preload_policies=["tests.lab.own_policy:OWN"], api_key=[ORDINARY_KEY],
        admin_api_key=ADMIN_KEY, log_level="error", access_log=False,
    )  # fmt: skip
    with Serving(config, lambda line: None) as serving:
        yield serving


def get(serving, **headers: str) -> httpx.Response:
    return httpx.get(serving.url + ADMIN_PATH, headers=headers or ADMIN, timeout=60)


def post(serving, name: str, **headers: str) -> httpx.Response:
    return httpx.post(serving.url + ADMIN_PATH, json={"policy": name}, headers=headers or ADMIN, timeout=90)


def seen_from_outside(ring: str) -> str:
    """What ``blink-numba policy show`` says."""
    return CliRunner().invoke(app, ["policy", "show", "--ring", ring]).output.strip()


def test_swaps_under_load_lose_no_request(serving):
    """Streams go on through every policy that ships, one of the owner's, and back."""
    ring = serving._config.ring_name
    names = [*list(SHIPPED)[1:], "own", "fcfs"]
    pool = [Asked("the ring of slots"[: 3 + k], 20 + k) for k in range(12)]
    compared = 0

    def answered(enough: int) -> bool:
        return compared >= enough

    async def streams(worker: int, client: openai.AsyncOpenAI, over: asyncio.Event) -> None:
        nonlocal compared
        for turn in range(1000):
            asked = pool[(worker + turn) % len(pool)]
            assert await stream(client, "tiny", asked, None) == alone[asked]
            compared += 1
            if over.is_set():
                return

    async def swaps(over: asyncio.Event) -> None:
        async with httpx.AsyncClient(base_url=serving.url, headers=ADMIN, timeout=90) as client:
            for name in names:
                answer = await client.post(ADMIN_PATH, json={"policy": name})
                assert answer.status_code == 200, answer.text
                assert answer.json()["policy"] == name
                assert answer.json()["in_force_after_s"] > 0.0
                now = (await client.get(ADMIN_PATH)).json()
                assert now == {"policy": name, "last_pause_s": answer.json()["pause_s"]}
                assert await asyncio.to_thread(seen_from_outside, ring) == name
                enough = compared + 4
                assert await asyncio.to_thread(wait_until, partial(answered, enough)), f"none under {name}"
        over.set()

    async def everything() -> None:
        over = asyncio.Event()
        client = openai.AsyncOpenAI(
            base_url=f"{serving.url}/v1", api_key=ORDINARY_KEY, max_retries=0, timeout=60
        )
        async with client, asyncio.TaskGroup() as group:
            group.create_task(swaps(over))
            for worker in range(8):
                group.create_task(streams(worker, client, over))

    alone = asyncio.run(answers_alone(serving.url, "tiny", pool, ORDINARY_KEY))
    asyncio.run(everything())


@pytest.mark.parametrize("headers", [
    {"x-nothing": "1"}, {"authorization": "Bearer"}, {"authorization": f"Bearer {ORDINARY_KEY}"},
    {"authorization": f"Bearer {ADMIN_KEY}x"}, {"authorization": ADMIN_KEY},
    {"authorization": f"Basic {ADMIN_KEY}"},
])  # fmt: skip
def test_only_the_administrators_key_opens_it(serving, headers):
    before = get(serving).json()["policy"]
    for answer in (get(serving, **headers), post(serving, "srpt", **headers)):
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (
            401, "authentication_error", "invalid_api_key",
        )  # fmt: skip
        assert "admin API key" in error["message"]
    assert get(serving).json()["policy"] == before


@pytest.mark.parametrize(
    "spelling", ["/admin/policy%0A", "/admin%2Fpolicy", "//admin/policy", "/admin/policy/"]
)
def test_no_spelling_of_the_path_opens_it_to_others(serving, spelling):
    """Routers differ from comparisons: a regular expression's end, for one, is before a last line break."""
    for headers in ({"authorization": f"Bearer {ORDINARY_KEY}"}, {"x-nothing": "1"}):
        answer = httpx.get(serving.url + spelling, headers=headers)
        assert answer.status_code in (401, 404)
        assert "policy" not in answer.json()


def test_the_administrators_key_opens_nothing_else(serving):
    assert httpx.get(f"{serving.url}/v1/models", headers=ADMIN).status_code == 401


def test_no_code_is_loaded_for_a_client(serving, tmp_path):
    """What a file would do were it imported is not done; the remedy is the host's command line."""
    (tmp_path / "e.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    before = get(serving).json()["policy"]
    for name in (f"{tmp_path}/e.py:P", "tests.lab.own_policy:OWN", f"{tmp_path}/e.py"[-42:], "nonesuch"):
        answer = post(serving, name)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "policy")
        assert "blink-numba policy set" in error["message"]
        assert all(shipped in error["message"] for shipped in SHIPPED)
    assert not (tmp_path / "imported").exists()
    assert get(serving).json()["policy"] == before


def test_the_command_line_leaves_to_the_engine_what_it_cannot_find_itself(serving):
    """`own` is a name that only this engine knows: it was started with it."""

    def ask(name: str) -> Result:
        return CliRunner().invoke(app, ["policy", "set", name, "--ring", serving._config.ring_name])

    assert ask("own").exit_code == 0
    assert get(serving).json()["policy"] == "own"
    refused = ask("./nix.py:P")
    assert refused.exit_code == 1
    assert re.fullmatch(r"error: the engine has no policy .*looked for in .*\n", refused.output)
    assert get(serving).json()["policy"] == "own"


def test_off_by_default_like_any_unknown_path():
    with Running("no-such-ring", first_engine_s=0.0) as running:
        for method in ("GET", "POST", "DELETE"):
            here = httpx.request(method, running.url + ADMIN_PATH, headers=ADMIN)
            nowhere = httpx.request(method, running.url + "/admin/nothing", headers=ADMIN)
            assert (here.status_code, here.text) == (404, nowhere.text.replace("/admin/nothing", ADMIN_PATH))
        assert ADMIN_PATH not in httpx.get(f"{running.url}/openapi.json").json()["paths"]


def test_without_an_engine():
    with Running("no-such-ring", first_engine_s=0.0, admin_api_key=ADMIN_KEY) as running:
        for answer in (get(running), post(running, "fcfs")):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_unavailable"
        assert ADMIN_PATH in httpx.get(f"{running.url}/openapi.json").json()["paths"]


def test_a_ring_on_another_host():
    """As `blink-numba frontend` sets it up, with an engine that it cannot reach either."""
    with Running("", first_engine_s=0.0, admin_api_key=ADMIN_KEY) as running:
        for answer in (get(running), post(running, "fcfs")):
            assert answer.status_code == 501
            assert "engine's host" in answer.json()["error"]["message"]
        assert get(running, authorization="Bearer x").status_code == 401


def test_of_two_swaps_at_once_one_is_told_to_come_again(serving):
    """The other waits for a command that another process gives; a second one is refused at once."""
    answers: list[httpx.Response] = []
    with RingMemory.attach(serving._config.ring_name) as memory:
        with memory.exclusively(5.0):
            waiting = [
                threading.Thread(target=lambda: answers.append(post(serving, "srpt"))) for _ in range(2)
            ]
            for thread in waiting:
                thread.start()
            assert wait_until(lambda: len(answers) == 1)
            assert answers[0].status_code == 409
            assert answers[0].json()["error"]["code"] == "swap_under_way"
        for thread in waiting:
            thread.join(60)
    assert answers[1].json()["policy"] == "srpt"


@schema.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_server_error(case, serving):
    case.call_and_validate(base_url=serving.url, headers=ADMIN, checks=[not_a_server_error], timeout=90)


# --- what engines answer ---


@contextmanager
def scheduler(serve: Callable[[RingMemory, int], None]) -> Iterator[RingMemory]:
    """A ring whose first request to swap is served by `serve`, which gets its number."""
    geometry = RingGeometry(slots=32, arena_tokens=1024, log_entries=64, flight_entries=16)
    with RingMemory.create(ring_name(), geometry, max_model_len=64, vocab_size=100) as memory:
        command = memory.view.command

        def run() -> None:
            if wait_until(lambda: command[at.C_POLICY] == 1, 30.0):
                serve(memory, 1)

        thread = threading.Thread(target=run)
        thread.start()
        yield memory
        thread.join(30.0)


def ring_of(memory: RingMemory) -> str:
    return memory.path.name.removeprefix("blink-numba-")


def put_in_force(memory: RingMemory, number: int) -> None:
    view = memory.view
    view.status[at.S_POLICY_NAME : at.S_POLICY_NAME + NAME_WORDS] = view.command[
        at.C_POLICY_NAME : at.C_POLICY_NAME + NAME_WORDS
    ]
    view.status[at.S_POLICY] = number


def test_the_pause_is_that_of_this_swap():

    def load(memory: RingMemory, number: int) -> None:
        memory.view.status[at.S_POLICY_WANTED] = number
        put_in_force(memory, number)
        time.sleep(0.05)  # it is told once the scheduler runs again
        memory.view.status[at.S_SWAP_PAUSE] = 7_000_000

    with scheduler(load) as memory:
        memory.view.status[at.S_SWAP_PAUSE] = 5_000_000  # of a swap before
        answer = swap(ring_of(memory), "vtc", 30.0)
    assert (answer["policy"], answer["pause_s"]) == ("vtc", 0.007)


def test_a_preset_stands_still_for_no_time():
    with scheduler(put_in_force) as memory:
        memory.view.status[at.S_SWAP_PAUSE] = 5_000_000
        answer = swap(ring_of(memory), "vtc", 30.0)
    assert (answer["policy"], answer["pause_s"]) == ("vtc", 0.0)


def refuse(memory: RingMemory, number: int) -> None:
    memory.view.command[at.C_REFUSED] = number


@pytest.mark.parametrize(("name", "status"), [("vtc", 409), ("own", 400)])
def test_a_refusal_is_the_clients_only_if_the_name_is_wrong(name, status):
    with scheduler(refuse) as memory, pytest.raises(ApiError, match="its log says why") as raised:
        swap(ring_of(memory), name, 30.0)
    assert (raised.value.status, raised.value.param) == (status, "policy")


def test_an_engine_that_does_not_answer_and_a_command_that_is_not_done():
    with scheduler(lambda memory, number: None) as memory:
        with memory.exclusively(5.0), pytest.raises(ApiError, match="not done yet") as raised:
            swap(ring_of(memory), "vtc", 0.02)
        assert raised.value.status == 409
        with pytest.raises(ApiError, match=r"no answer within") as raised:
            swap(ring_of(memory), "vtc", 0.02)
    assert raised.value.status == 504

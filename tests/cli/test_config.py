"""Flags over variables over file over defaults; every mistake names its setting and its source."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from blink_numba.config import OTHER_VARIABLES, ConfigError, ServeConfig, load_config, parse_cpus
from blink_numba.frontend.settings import FrontEndSettings
from blink_numba.serving import ServingError, listen, serve

ROOT = Path(__file__).parents[2]


def test_order_of_sources(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nmax-model-len: 11\nslots: 64\nserved-model-name: [a, b]\n")
    environment = {"BLINK_NUMBA_PORT": "2", "BLINK_NUMBA_MAX_MODEL_LEN": "22"}
    config = load_config({"port": 3, "host": None}, file, environment)
    assert (config.port, config.max_model_len, config.slots, config.host) == (3, 22, 64, "127.0.0.1")
    assert config.served_model_name == ["a", "b"]


def test_lists_in_variables():
    config = load_config({}, None, {"BLINK_NUMBA_API_KEY": "one,two"})
    assert config.api_key == ["one", "two"]


def test_booleans_in_variables():
    assert load_config({}, None, {"BLINK_NUMBA_ACCESS_LOG": "false"}).access_log is False


@pytest.mark.parametrize(
    ("flags", "environment", "text", "message"),
    [
        ({"port": 70000}, {}, "", "--port=70000"),
        ({}, {"BLINK_NUMBA_PORT": "x"}, "", "BLINK_NUMBA_PORT='x'"),
        ({}, {}, "prot: 3", "there is no setting 'prot'"),
        ({}, {}, "- 1", "must be a mapping"),
        ({}, {}, "a: [", "not valid YAML"),
        ({"slots": 33}, {}, "", "multiple of 32"),
        ({"backend": "tpu"}, {}, "", "--backend='tpu'"),
        ({"gpu_memory_utilization": 1.5}, {}, "", "--gpu-memory-utilization=1.5"),
        ({}, {}, "max-model-len: 1e3", "serve.yaml: max-model-len='1e3'"),
        ({}, {}, "port: true", "port must not be true"),
        ({}, {}, "slots: 64\nslots: 96", "'slots' is given twice"),
        ({}, {}, "max-model-len: 64\nmax_model_len: 96", "'max_model_len' is given twice"),
        ({}, {}, "model: [" + "x, " * 1000 + "]", "model=['x', 'x',"),
        ({"api_key": [""]}, {}, "", "--api-key=…: must not be empty"),
        ({}, {}, "api-key: ''", "api-key=…: must not be empty"),
        ({}, {"BLINK_NUMBA_API_KEY": "one,,two"}, "", "must not be empty"),
        ({}, {"BLINK_NUMBA_API_KEY": ""}, "", "BLINK_NUMBA_API_KEY=…: must not be empty"),
        ({}, {"BLINK_NUMBA_ADMIN_API_KEY": ""}, "", "BLINK_NUMBA_ADMIN_API_KEY=…: must not be empty"),
        ({"admin_api_key": ""}, {}, "", "--admin-api-key=…: must not be empty"),
        ({}, {}, "admin-api-key: ' '", "admin-api-key=…: must not be empty"),
        ({}, {}, "admin-api-key: 12", "admin-api-key=…: Input should be a valid string"),
        ({"admin_api_key": "k", "api_key": ["a", "k"]}, {}, "", "must differ from every api_key"),
        ({}, {"BLINK_NUMBA_API_KEYS": "x"}, "", "BLINK_NUMBA_API_KEYS: set BLINK_NUMBA_API_KEY if"),
        ({}, {"BLINK_NUMBA_MAX_MODEL_LENGTH": "9"}, "", "set BLINK_NUMBA_MAX_MODEL_LEN if"),
        ({}, {"BLINK_NUMBA_log_levle": "9"}, "", "set BLINK_NUMBA_LOG_LEVEL if"),
        ({}, {"BLINK_NUMBA_CASHE": "9"}, "", "set BLINK_NUMBA_CACHE if"),
        ({"served_model_name": [" "]}, {}, "", "must not be empty"),
        ({"host": ""}, {}, "", "--host=''"),
        ({"ring": "../x"}, {}, "", "plain file name"),
        ({"threads": 1_000_000}, {}, "", "--threads=1000000"),
        ({"front_end_cpus": "a-b"}, {}, "", "must look like 0,2-3"),
        ({"front_end_cpus": "5-2"}, {}, "", "no range of cores"),
        ({"front_end_cpus": "0-1000000000000"}, {}, "", "no range of cores"),
        ({"front_end_cpus": "8191"}, {}, "", "cores that this process may use: "),
    ],
)
def test_mistakes_are_named(tmp_path, flags, environment, text, message):
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(flags, file, environment)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 500


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        load_config({}, tmp_path / "nothing.yaml", {})


def test_every_setting_is_described_and_goes_somewhere():
    assert all(field.description for field in ServeConfig.model_fields.values())
    config = ServeConfig(max_num_seqs=3, api_key=["k"], admin_api_key="a", queue_timeout=7.0)
    assert config.engine().max_seats == 3
    front_end = config.front_end()
    assert (front_end.api_keys, front_end.admin_api_key, front_end.queue_timeout_s) == (("k",), "a", 7.0)
    assert front_end.ring == config.engine().ring_name
    assert front_end.from_json(front_end.to_json()) == front_end
    assert not any(key in repr(part) for part in (config, front_end) for key in ("'k'", "'a'"))


def test_variables_that_nobody_reads_are_told_in_one_line(caplog):
    """One may be another program's, such as those that Kubernetes makes for a service of this name."""
    environment = {f"BLINK_NUMBA_SERVICE_{k}": "x" for k in range(7)} | {
        "BLINK_NUMBA_CACHE": "x",
        "PATH": "x",
    }
    load_config({}, None, environment)
    assert [record.getMessage() for record in caplog.records] == [
        "nothing reads these variables: "
        + ", ".join(f"BLINK_NUMBA_SERVICE_{k}" for k in range(5))
        + " and 2 more"
    ]
    caplog.clear()
    load_config({}, None, dict.fromkeys(OTHER_VARIABLES, "x"))
    assert not caplog.records


def test_the_variables_that_others_read_are_those_in_the_source():
    named = set()
    for package in ("blink_numba", "ring", "scheduler", "graphs", "rdma", "tokenizer", "tests"):
        for file in (ROOT / package).rglob("*.py"):
            if file != Path(__file__):
                named |= set(re.findall(r"\bBLINK_NUMBA_[A-Z_]*[A-Z]\b", file.read_text()))
    assert named - {f"BLINK_NUMBA_{name.upper()}" for name in ServeConfig.model_fields} == OTHER_VARIABLES


def test_a_front_end_has_no_empty_key_and_none_for_both():
    for keys in ({"api_keys": ("",)}, {"admin_api_key": " "}, {"api_keys": ("a",), "admin_api_key": "a"}):
        with pytest.raises(ValueError, match="API key"):
            FrontEndSettings("tiny", ("tiny",), "ring", **keys)


def test_the_engine_logs_at_the_servers_level(monkeypatch):
    """Its process takes the level from the environment, here that of the first thing that is started."""
    seen = []

    def start(config, on_progress):
        seen.append(os.environ["BLINK_NUMBA_LOG_LEVEL"])
        raise ServingError("seen enough")

    monkeypatch.setenv("BLINK_NUMBA_LOG_LEVEL", "DEBUG")
    monkeypatch.setattr("blink_numba.serving.Serving", start)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    assert serve(load_config({}), print, print) == 1
    assert serve(load_config({"log_level": "warning"}), print, print) == 1
    assert seen == ["debug", "warning"]


def test_cpu_lists():
    assert parse_cpus("0,2-4") == (0, 2, 3, 4)
    assert parse_cpus(None) == ()
    with pytest.raises(ConfigError):
        parse_cpus("a-b")


@pytest.mark.parametrize("host", ["256.1.1.1", "nope.invalid", "::1:", "x" * 300, "192.0.2.1"])
def test_an_address_that_is_none_of_this_machine_is_named(host):
    with pytest.raises(ServingError, match="--host"):
        listen(host, 0)

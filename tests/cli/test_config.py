"""Flags over variables over file over defaults; every mistake names its setting and its source."""

from __future__ import annotations

import pytest

from blink_numba.config import ConfigError, ServeConfig, load_config, parse_cpus
from blink_numba.serving import ServingError, listen


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
    config = ServeConfig(max_num_seqs=3, api_key=["k"], queue_timeout=7.0)
    assert config.engine().max_seats == 3
    front_end = config.front_end()
    assert (front_end.api_keys, front_end.queue_timeout_s) == (("k",), 7.0)
    assert front_end.ring == config.engine().ring_name
    assert front_end.from_json(front_end.to_json()) == front_end
    assert "'k'" not in repr(config)
    assert "'k'" not in repr(front_end)


def test_cpu_lists():
    assert parse_cpus("0,2-4") == (0, 2, 3, 4)
    assert parse_cpus(None) == ()
    with pytest.raises(ConfigError):
        parse_cpus("a-b")


@pytest.mark.parametrize("host", ["256.1.1.1", "nope.invalid", "::1:", "x" * 300, "192.0.2.1"])
def test_an_address_that_is_none_of_this_machine_is_named(host):
    with pytest.raises(ServingError, match="--host"):
        listen(host, 0)

"""Configuration of the server: flags over ``BLINK_NUMBA_*`` variables over a YAML file over defaults.

Names are vLLM's where the meaning is the same.
"""

from __future__ import annotations

import difflib
import logging
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ring.memory import RingError, ring_path

if TYPE_CHECKING:
    from blink_numba.frontend.settings import FrontEndSettings
    from blink_numba.runtime import EngineConfig

log = logging.getLogger("blink_numba")

ENVIRONMENT_PREFIX = "BLINK_NUMBA_"
KEYS = ("api_key", "admin_api_key")  # settings whose values no message shows
# variables that other parts of the project read
OTHER_VARIABLES = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in ("CACHE", "SHM", "RDMA_KEY", "RDMA_KEY_FILE", "RDMA_DEVICE", "RDMA_GID", "RDMA_PROVIDER",
                 "SOAK_S", "TEST_GGUF")
)  # fmt: skip
_ALIKE = 0.7  # a name so similar to a setting's is that setting, misspelt


class ConfigError(ValueError):
    """A setting is unknown or out of range; the message names it and where it was found."""


class ServeConfig(BaseModel):
    """Everything that `blink-numba serve` can be told; one field a flag."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # engine
    model: str = Field("smollm2", description="Model: a name, a GGUF file or a Hugging Face folder.")
    backend: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes the GPU where one works.")
    dummy: bool = Field(False, description="Random weights in the model's shape.")
    max_model_len: int | None = Field(None, ge=2, description="Most tokens of prompt and answer together.")
    max_num_seqs: int | None = Field(None, ge=1, le=4096, description="Most requests in the batch.")
    gpu_memory_utilization: float | None = Field(
        None, gt=0.0, le=1.0,
        description="Part of the GPU's memory for weights, activations and KV cache; 0.9 by default.",
    )  # fmt: skip
    kv_tokens: int | None = Field(
        None, ge=1, description="Tokens the KV cache holds, instead of a part of memory."
    )
    block_size: int = Field(16, ge=1, le=1024, description="Tokens of a KV block.")
    threads: int | None = Field(None, ge=1, le=1024, description="Threads of the CPU engine.")
    scheduling_policy: str = Field("fcfs", description="Scheduling policy.")
    preload_policies: list[str] = Field(
        default_factory=list, description="Policies to swap to later without the scheduler standing still."
    )
    launch: Literal["faf", "tail", "while", "host", "host-pipelined"] = Field(
        "faf", description="Launch strategy of the CUDA backend."
    )
    batch_invariant: bool = Field(False, description="Answers that do not depend on the batch (CUDA).")
    slots: int = Field(
        1024, ge=32, le=65536, description="Slots of the ring: most requests accepted at once."
    )
    ring: str | None = Field(
        None, description="Name of the ring in shared memory; one of this process by default."
    )

    # front end
    served_model_name: list[str] = Field(default_factory=list, description="Names that requests may ask for.")
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_key: list[str] = Field(
        default_factory=list, repr=False, description="Keys that are let in; none: everybody."
    )
    admin_api_key: str | None = Field(
        None, repr=False, description="Key of /admin/policy, which is off without one."
    )
    max_body_size: int = Field(4 << 20, ge=1024, description="Most bytes of a request's body.")
    request_timeout: float | None = Field(None, gt=0.0, description="Deadline of every request, in seconds.")
    queue_timeout: float = Field(
        5.0, ge=0.0, description="Seconds to wait for room in the ring before a 503."
    )
    write_timeout: float = Field(30.0, gt=0.0, description="Seconds a client may stop reading.")
    header_timeout: float = Field(10.0, gt=0.0, description="Seconds a client may take to send its header.")
    body_timeout: float = Field(30.0, gt=0.0, description="Seconds a client may take to send its body.")
    drain_timeout: float = Field(30.0, ge=0.0, description="Seconds to finish requests after SIGTERM.")
    front_end_cpus: str | None = Field(None, description="Cores to pin the front end to, such as 0,2-3.")
    access_log: bool = Field(True, description="A line of JSON for each request.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )

    @field_validator("served_model_name", "api_key", "preload_policies", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return value.split(",") if isinstance(value, str) else value

    @field_validator("served_model_name", "api_key")
    @classmethod
    def _none_empty(cls, value: list[str]) -> list[str]:
        if not all(part.strip() for part in value):
            raise ValueError("must not be empty: leave the setting out, or give it a value")
        return value

    @field_validator("admin_api_key")
    @classmethod
    def _not_empty(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must not be empty: leave the setting out, or give it a value")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("ring")
    @classmethod
    def _plain_name(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                ring_path(value)
            except RingError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("front_end_cpus")
    @classmethod
    def _cores_of_this_machine(cls, value: str | None) -> str | None:
        there = os.sched_getaffinity(0)
        if not there.issuperset(parse_cpus(value)):
            raise ValueError(
                f"must name cores that this process may use: {', '.join(map(str, sorted(there)))}"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, given: Any) -> Any:
        for name, value in given.items():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation is not bool:
                raise ValueError(f"{name} must not be {str(value).lower()}")
        return given

    @model_validator(mode="after")
    def _another_key_for_administrators(self) -> ServeConfig:
        if self.admin_api_key in self.api_key:
            raise ValueError("admin_api_key must differ from every api_key: those who may ask may not swap")
        return self

    @field_validator("slots")
    @classmethod
    def _whole_doorbells(cls, value: int) -> int:
        if value % 32:
            raise ValueError("must be a multiple of 32")
        return value

    @property
    def ring_name(self) -> str:
        return self.ring or f"serve-{os.getpid()}"

    def engine(self) -> EngineConfig:
        """The engine's part."""
        from blink_numba.runtime import EngineConfig

        return EngineConfig(
            model=self.model, backend=self.backend, ring_name=self.ring_name, slots=self.slots,
            max_seats=self.max_num_seqs, max_model_len=self.max_model_len, kv_tokens=self.kv_tokens,
            block_size=self.block_size, threads=self.threads, policy=self.scheduling_policy,
            preload=tuple(self.preload_policies),
            launch=self.launch, dummy=self.dummy, batch_invariant=self.batch_invariant,
            gpu_memory_utilization=self.gpu_memory_utilization,
        )  # fmt: skip

    def front_end(self) -> FrontEndSettings:
        """The front end's part."""
        from blink_numba.frontend.settings import FrontEndSettings

        return FrontEndSettings(
            model=self.model, served_names=tuple(self.served_model_name) or (self.model,),
            ring=self.ring_name, host=self.host, port=self.port, api_keys=tuple(self.api_key),
            admin_api_key=self.admin_api_key, max_body_bytes=self.max_body_size,
            header_timeout_s=self.header_timeout, body_timeout_s=self.body_timeout,
            write_timeout_s=self.write_timeout, queue_timeout_s=self.queue_timeout,
            request_timeout_s=self.request_timeout, drain_timeout_s=self.drain_timeout,
            access_log=self.access_log, log_level=self.log_level, cpus=parse_cpus(self.front_end_cpus),
        )  # fmt: skip


def load_config(flags: Mapping[str, Any], file: Path | None = None,
                environment: Mapping[str, str] | None = None) -> ServeConfig:  # fmt: skip
    """Merge all sources.

    Parameters
    ----------
    flags : mapping
        Settings given on the command line; None means not given.
    file : Path, optional
        YAML file with flag names as keys, dashes or underscores.
    environment : mapping, optional
        `os.environ` by default; ``BLINK_NUMBA_MAX_MODEL_LEN=4096`` is ``--max-model-len 4096``. An empty
        variable counts as not set, but for a key: a server must not be open where one was meant.

    Raises
    ------
    ConfigError
    """
    environment = os.environ if environment is None else environment
    _refuse_misspelt(environment)
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in _from_file(file).items():
        merged[name], origin[name] = value, f"{file}: {name.replace('_', '-')}"
    for name in ServeConfig.model_fields:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if environment.get(variable) or (name in KEYS and variable in environment):
            merged[name], origin[name] = environment[variable], variable
    for name, value in flags.items():
        if value is not None and value != []:
            merged[name], origin[name] = value, f"--{name.replace('_', '-')}"
    try:
        return ServeConfig(**merged)
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        name = str(finding["loc"][0]) if finding["loc"] else ""
        if finding["type"] == "extra_forbidden":
            raise ConfigError(f"{origin.get(name, name)}: there is no setting {name!r}") from None
        message = finding["msg"].removeprefix("Value error, ")
        if not name:  # of the whole
            raise ConfigError(message) from None
        value = "…" if name in KEYS else reprlib.repr(merged.get(name))
        raise ConfigError(f"{origin.get(name, name)}={value}: {message}") from None


def _refuse_misspelt(environment: Mapping[str, str]) -> None:
    """`ConfigError` for a variable whose name is almost a setting's; a warning of others nobody reads."""
    known = OTHER_VARIABLES.union(ENVIRONMENT_PREFIX + name.upper() for name in ServeConfig.model_fields)
    names = {name.removeprefix(ENVIRONMENT_PREFIX): name for name in known}
    unread = sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known)
    for variable in unread:
        given = variable.removeprefix(ENVIRONMENT_PREFIX).upper()
        for nearest in difflib.get_close_matches(given, names, n=1, cutoff=_ALIKE):
            raise ConfigError(
                f"nothing reads the variable {variable}: set {names[nearest]} if that is meant, or unset it"
            )
    if unread:
        more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
        log.warning("nothing reads these variables: %s%s", ", ".join(unread[:5]), more)


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        content = yaml.load(file.read_text(), _UniqueKeys)  # a safe loader
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{file} must be a mapping of settings, such as 'max-model-len: 4096'")
    return {key.replace("-", "_"): value for key, value in content.items()}


MOST_CPUS = 8192


def parse_cpus(text: str | None) -> tuple[int, ...]:
    """``0,2-3`` as (0, 2, 3); `ConfigError` for what looks otherwise."""
    cpus: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError("must look like 0,2-3")
        low, high = int(first), int(last or first)
        if not low <= high < MOST_CPUS:
            raise ConfigError(f"{part.strip()} is no range of cores")
        cpus.extend(range(low, high + 1))
    return tuple(cpus)


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that names a key twice, which YAML forbids and PyYAML lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = key.value.replace("-", "_") if isinstance(key.value, str) else None
            if name is not None and name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is given twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)

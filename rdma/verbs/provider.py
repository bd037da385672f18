"""The seam between the verbs transport and a verbs library.

A provider opens a device, registers memory and makes reliable-connection queue pairs; it
posts a list of one-sided operations as one chain, of which only the last asks for a
completion. Two are known: ``pyverbs`` (rdma-core's own, packaged by distributions) and
``ibverbs`` (PyPI).
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from ipaddress import IPv6Address
from typing import NamedTuple, Protocol

from rdma.transport import TransportError

PROVIDERS = ("pyverbs", "ibverbs")
PORT = 1  # of a device
PORT_ACTIVE = 4  # ibv_port_state
READS_IN_FLIGHT = 16  # at most, of a queue pair; what every NIC offers
INLINE_BYTES = 64  # writes up to here travel in the work request: no read of staging memory

WC_SUCCESS, WC_FLUSHED, WC_REMOTE_ACCESS, WC_RETRY_EXCEEDED = 0, 5, 10, 12
STATUS_NAMES = {  # ibv_wc_status
    1: "local length error", 2: "local queue pair operation error", 4: "local protection error",
    5: "flushed", 7: "bad response", 8: "local access error", 9: "remote invalid request",
    10: "remote access error", 11: "remote operation error", 12: "transport retries exceeded",
    13: "receiver-not-ready retries exceeded", 16: "remote abort", 19: "fatal error",
    20: "response timeout", 21: "general error",
}  # fmt: skip
# These tell that the peer's queue pair, or our own, is gone; every other status may be a refusal.
SILENT = (WC_RETRY_EXCEEDED, 20)
UNANSWERED = (*SILENT, WC_FLUSHED, 13)


def status_text(status: int) -> str:
    """A completion status in words."""
    return f"{STATUS_NAMES.get(status, 'error')} (status {status})"


class VerbsUnavailable(TransportError):
    """No verbs library or no RDMA device here; the message names the remedy."""


@dataclass(frozen=True)
class QueueAddress:
    """Where a queue pair can be reached; travels in the bootstrap."""

    qpn: int
    psn: int
    gid: str
    lid: int
    mtu: int

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict) -> QueueAddress:
        """Inverse of `to_json`; `ValueError` for anything else."""
        try:
            qpn, psn, lid, mtu = (int(given[name]) for name in ("qpn", "psn", "lid", "mtu"))
            IPv6Address(given["gid"])
        except (KeyError, TypeError, OverflowError, ValueError) as error:
            raise ValueError(f"not the address of a queue pair: {error!r}") from None
        if not (0 <= qpn < 1 << 24 and 0 <= psn < 1 << 24 and 0 <= lid < 1 << 16 and 1 <= mtu <= 5):
            raise ValueError(f"not the address of a queue pair: {given}")
        return cls(qpn, psn, given["gid"], lid, mtu)


class OneSided(NamedTuple):
    """An operation of a chain: `length` bytes between local memory and the peer's."""

    is_read: bool
    local: int
    length: int
    remote: int
    rkey: int


class Region(Protocol):
    """Registered memory."""

    lkey: int
    rkey: int

    def close(self) -> None: ...


class QueuePair(Protocol):
    """A reliable-connection queue pair with its own completion queue."""

    depth: int
    address: QueueAddress

    def connect(self, peer: QueueAddress) -> None:
        """Bring the queue up towards a peer."""

    def post(self, chain: list[OneSided], lkey: int, number: int) -> None:
        """Post a chain, at most `depth` long; its last completes as `number`, or any fails."""

    def poll(self) -> list[tuple[int, int]]:
        """Completions that have come: (number, status)."""
        ...

    def break_off(self) -> None:
        """Bring the queue into its error state, as a fault would."""

    def close(self) -> None: ...


class Device(Protocol):
    """An open device with a protection domain of its own."""

    name: str

    def register(self, address: int, length: int, *, remote_read: bool, remote_write: bool) -> Region:
        """Register memory of this process."""
        ...

    def register_gpu(
        self, address: int, length: int, *, dmabuf_fd: int | None, offset: int, remote_write: bool
    ) -> Region:
        """Register GPU memory: by its dma-buf, or, without one, through nvidia-peermem."""
        ...

    def queue_pair(self, depth: int) -> QueuePair: ...

    def close(self) -> None: ...


def open_device(
    name: str | None = None, *, gid_index: int | None = None, provider: str | None = None
) -> Device:
    """Open an RDMA device.

    Parameters
    ----------
    name : str, optional
        Such as ``mlx5_0``; ``BLINK_NUMBA_RDMA_DEVICE``, or the first whose port is active.
    gid_index : int, optional
        Entry of the port's GID table; ``BLINK_NUMBA_RDMA_GID``, or the last IPv4-mapped
        (RoCE v2) entry.
    provider : {"pyverbs", "ibverbs"}, optional
        ``BLINK_NUMBA_RDMA_PROVIDER``, or the first that can be imported.

    Raises
    ------
    VerbsUnavailable
    """
    name = name or os.environ.get("BLINK_NUMBA_RDMA_DEVICE") or None
    if gid_index is None and (given := os.environ.get("BLINK_NUMBA_RDMA_GID")):
        if not given.isdecimal():
            raise VerbsUnavailable(f"BLINK_NUMBA_RDMA_GID={given!r} must be an index of the port's GID table")
        gid_index = int(given)
    chosen = provider or os.environ.get("BLINK_NUMBA_RDMA_PROVIDER")
    if chosen and chosen not in PROVIDERS:
        raise VerbsUnavailable(f"verbs provider {chosen!r} is unknown: use one of {', '.join(PROVIDERS)}")
    reasons = []
    for candidate in (chosen,) if chosen else PROVIDERS:
        try:
            if candidate == "pyverbs":
                from rdma.verbs.pyverbs_provider import PyverbsDevice

                return PyverbsDevice(name, gid_index)
            from rdma.verbs.ibverbs_provider import IbverbsDevice

            return IbverbsDevice(name, gid_index)
        except ImportError as error:
            reasons.append(f"{candidate}: {error}")
    raise VerbsUnavailable(
        f"no verbs library ({'; '.join(reasons)}): install Debian's or Ubuntu's python3-pyverbs for the "
        "system's Python version, or blink-numba[rdma] (PyPI's ibverbs)"
    )


def check_active(name: str, state: int) -> None:
    """`VerbsUnavailable` unless a port's state is that of a usable link."""
    if state != PORT_ACTIVE:
        raise VerbsUnavailable(
            f"port {PORT} of RDMA device {name} is not active: bring its interface up (see `rdma link`)"
        )


def pick_gid(gids: list[str], wanted: int | None) -> int:
    """Index into a GID table: `wanted`, or the last IPv4-mapped entry, or the last one in use."""
    if wanted is not None:
        if not 0 <= wanted < len(gids):
            raise VerbsUnavailable(f"GID index {wanted}: the port has entries 0 to {len(gids) - 1}")
        return wanted
    used = [k for k, gid in enumerate(gids) if set(gid) - set("0:")]
    mapped = [k for k in used if gids[k].split(":")[5:6] == ["ffff"]]
    if not used:
        raise VerbsUnavailable("the RDMA port has no address (GID): bring its network interface up")
    return (mapped or used)[-1]

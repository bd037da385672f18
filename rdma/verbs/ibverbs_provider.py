"""PyPI's ibverbs: a wheel for every Python, over the system's libibverbs. Alpha, hence pinned.

It allocates a work request per operation but frees it, and lets go of the GIL while it posts.
"""

from __future__ import annotations

import random

import ibverbs as ib

from rdma.transport import TransportError
from rdma.verbs.provider import (
    INLINE_BYTES,
    PORT,
    PORT_ACTIVE,
    READS_IN_FLIGHT,
    OneSided,
    QueueAddress,
    VerbsUnavailable,
    check_active,
    pick_gid,
)

_POLL_BATCH = 32
_HOPS = 64


def _first_active(devices: list[ib.Device]) -> tuple[ib.Context, str, ib.PortAttr]:
    """The first device whose port is active, its name and its port; `IndexError` if there is none at all."""
    opened = [device.open() for device in devices]
    ports = [context.query_port(PORT) for context in opened]
    chosen = next((k for k, port in enumerate(ports) if int(port.state) == PORT_ACTIVE), 0)
    for k, context in enumerate(opened):
        if k != chosen:
            context.close()
    try:
        check_active(devices[chosen].name, int(ports[chosen].state))
    except VerbsUnavailable:
        opened[chosen].close()
        raise
    return opened[chosen], devices[chosen].name, ports[chosen]


class IbverbsDevice:
    """`rdma.verbs.provider.Device` over ibverbs."""

    def __init__(self, name: str | None, gid_index: int | None) -> None:
        try:
            devices = {device.name: device for device in ib.get_device_list()}
            self._context, self.name, port = _first_active([devices[name]] if name else [*devices.values()])
        except (ib.VerbsError, OSError, KeyError, IndexError) as error:
            what = f"RDMA device {name!r} cannot be opened" if name else "there is no RDMA device"
            raise VerbsUnavailable(
                f"{what} ({error!r}): load the driver, or `rdma link add` a soft-RoCE one"
            ) from None
        gids = [_text(self._context.query_gid(PORT, k).raw) for k in range(port.gid_tbl_len)]
        self._gid_index = pick_gid(gids, gid_index)
        self._gid, self._lid, self._mtu = gids[self._gid_index], port.lid, int(port.active_mtu)
        self._pd = self._context.alloc_pd()

    def register(self, address: int, length: int, *, remote_read: bool, remote_write: bool) -> ib.MR:
        access = _access(remote_read, remote_write)
        return self._registered(lambda: self._pd.reg_mr(address, length, access))

    def register_gpu(
        self, address: int, length: int, *, dmabuf_fd: int | None, offset: int, remote_write: bool
    ) -> ib.MR:
        if dmabuf_fd is None:  # nvidia-peermem resolves the GPU's own addresses
            return self.register(address, length, remote_read=not remote_write, remote_write=remote_write)
        access = _access(not remote_write, remote_write)
        return self._registered(lambda: self._pd.reg_dmabuf_mr(offset, length, offset, dmabuf_fd, access))

    def _registered(self, make) -> ib.MR:
        try:
            return make()
        except (ib.VerbsError, OSError) as error:
            raise TransportError(
                f"memory cannot be registered with {self.name} ({error}): raise the limit of locked memory "
                "(ulimit -l)"
            ) from None

    def queue_pair(self, depth: int) -> IbverbsQueuePair:
        return IbverbsQueuePair(
            self._context, self._pd, depth, self._gid, self._gid_index, self._lid, self._mtu
        )

    def close(self) -> None:
        self._pd.close()
        self._context.close()


class IbverbsQueuePair:
    """`rdma.verbs.provider.QueuePair` over ibverbs."""

    def __init__(
        self, context: ib.Context, pd: ib.PD, depth: int, gid: str, gid_index: int, lid: int, mtu: int
    ) -> None:
        self.depth = depth
        self._gid_index = gid_index
        try:
            self._cq = context.create_cq(depth)
            self._qp = pd.create_qp(
                ib.QPInitAttr(
                    send_cq=self._cq, recv_cq=self._cq, qp_type=ib.QPType.RC, max_send_wr=depth,
                    max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=INLINE_BYTES,
                    sq_sig_all=False,
                )
            )  # fmt: skip
        except (ib.VerbsError, OSError) as error:
            raise TransportError(f"a queue pair cannot be made ({error}): is the device still up?") from None
        self.address = QueueAddress(self._qp.qp_num, random.getrandbits(24), gid, lid, mtu)

    def connect(self, peer: QueueAddress) -> None:
        mtu = min(self.address.mtu, peer.mtu)
        remote = ib.QPInfo(peer.qpn, peer.psn, peer.lid, bytes.fromhex(peer.gid.replace(":", "")), PORT, mtu)
        try:
            self._qp.to_init(PORT, ib.AccessFlags.REMOTE_READ | ib.AccessFlags.REMOTE_WRITE)
            self._qp.to_rtr(
                remote, sgid_index=self._gid_index, mtu=mtu, hop_limit=_HOPS,
                max_dest_rd_atomic=READS_IN_FLIGHT,
            )  # fmt: skip
            self._qp.to_rts(self.address.psn, max_rd_atomic=READS_IN_FLIGHT)
        except (ib.VerbsError, OSError) as error:
            raise TransportError(
                f"the peer's queue pair at {peer.gid} cannot be reached ({error}): check that both RDMA "
                "interfaces are in one network"
            ) from None

    def post(self, chain: list[OneSided], lkey: int, number: int) -> None:
        last = len(chain) - 1
        requests = []
        for k, (is_read, local, length, remote, rkey) in enumerate(chain):
            flags = ib.SendFlags.SIGNALED if k == last else 0
            if not is_read and length <= INLINE_BYTES:
                flags |= ib.SendFlags.INLINE
            requests.append(
                ib.SendWR(
                    wr_id=number, sg_list=[ib.SGE(local, length, lkey)], send_flags=flags, rkey=rkey,
                    opcode=ib.WROpcode.RDMA_READ if is_read else ib.WROpcode.RDMA_WRITE, remote_addr=remote,
                )
            )  # fmt: skip
        try:
            self._qp.post_send(requests)
        except (ib.VerbsError, OSError) as error:
            raise TransportError(f"a chain of {len(chain)} operations was not accepted: {error}") from None

    def poll(self) -> list[tuple[int, int]]:
        return [(one.wr_id, int(one.status)) for one in self._cq.poll(_POLL_BATCH)]

    def break_off(self) -> None:
        self._qp.modify(ib.QPAttrMask.STATE, qp_state=ib.QPState.ERR)

    def close(self) -> None:
        self._qp.close()
        self._cq.close()


def _access(remote_read: bool, remote_write: bool) -> int:
    """Never with relaxed ordering: the protocol needs writes to land in order."""
    access = ib.AccessFlags.LOCAL_WRITE
    access |= ib.AccessFlags.REMOTE_READ if remote_read else 0
    access |= ib.AccessFlags.REMOTE_WRITE if remote_write else 0
    return access


def _text(raw: bytes) -> str:
    """A GID as rdma-core writes it, eight groups of four hexadecimal digits."""
    return ":".join(raw[k : k + 2].hex() for k in range(0, 16, 2))

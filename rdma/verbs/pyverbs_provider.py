"""rdma-core's pyverbs. Work requests are built by the extended queue pair, so none is allocated.

pyverbs's pitfalls that shape this file: `get_cq_event` holds the GIL (so completions are
polled), `SendWR` and `SGE` leak unless reused (so one SGE serves every operation), importing
it configures the root logger (so that is undone).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import random
import sys
from pathlib import Path
from typing import Any

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

_DISTRIBUTION = Path("/usr/lib/python3/dist-packages")  # where Debian puts python3-pyverbs
_TIMEOUT, _RETRIES, _RNR_TIMER = 14, 7, 12  # 4.096 µs · 2^14 = 67 ms a try
_POLL_BATCH = 32


def _import_pyverbs() -> None:
    """Import pyverbs, from the distribution's folder if need be; leave logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        try:
            importlib.import_module("pyverbs.device")
        except ImportError:
            if not (_DISTRIBUTION / "pyverbs").is_dir():
                raise
            sys.path.append(str(_DISTRIBUTION))
            try:
                importlib.import_module("pyverbs.device")
            finally:
                sys.path.remove(str(_DISTRIBUTION))
        for part in ("addr", "cq", "enums", "mr", "pd", "qp", "wr", "pyverbs_error"):
            with contextlib.suppress(ImportError):  # newer ones have no `enums`
                importlib.import_module(f"pyverbs.{part}")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


_import_pyverbs()

from pyverbs.addr import GID, AHAttr, GlobalRoute  # noqa: E402
from pyverbs.cq import CQ  # noqa: E402
from pyverbs.device import Context, get_device_list  # noqa: E402
from pyverbs.mr import MR, DmaBufMR  # noqa: E402
from pyverbs.pd import PD  # noqa: E402
from pyverbs.pyverbs_error import PyverbsError  # noqa: E402
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx  # noqa: E402
from pyverbs.wr import SGE  # noqa: E402

try:
    import pyverbs.libibverbs_enums as e
except ImportError:
    import pyverbs.enums as e


def _first_active(names: list[str]) -> tuple[Context, str, Any]:
    """The first device whose port is active, its name and its port; `IndexError` if there is none at all."""
    opened = [(Context(name=name), name) for name in names]
    ports = [context.query_port(PORT) for context, _ in opened]
    chosen = next((k for k, port in enumerate(ports) if port.state == PORT_ACTIVE), 0)
    for k, (context, _) in enumerate(opened):
        if k != chosen:
            context.close()
    context, name = opened[chosen]
    try:
        check_active(name, ports[chosen].state)
    except VerbsUnavailable:
        context.close()
        raise
    return context, name, ports[chosen]


class PyverbsDevice:
    """`rdma.verbs.provider.Device` over pyverbs."""

    def __init__(self, name: str | None, gid_index: int | None) -> None:
        try:
            names = [name] if name else [device.name.decode() for device in get_device_list()]
            self._context, self.name, port = _first_active(names)
        except (PyverbsError, IndexError) as error:
            what = f"RDMA device {name!r} cannot be opened" if name else "there is no RDMA device"
            raise VerbsUnavailable(
                f"{what} ({error}): load the driver, or `rdma link add` a soft-RoCE one"
            ) from None
        gids = [str(self._context.query_gid(PORT, k)) for k in range(port.gid_tbl_len)]
        self._gid_index = pick_gid(gids, gid_index)
        self._gid, self._lid, self._mtu = gids[self._gid_index], port.lid, port.active_mtu
        self._pd = PD(self._context)

    def register(self, address: int, length: int, *, remote_read: bool, remote_write: bool) -> MR:
        return self._registered(lambda access: MR(self._pd, length, access, address=address),
                                remote_read, remote_write)  # fmt: skip

    def register_gpu(
        self, address: int, length: int, *, dmabuf_fd: int | None, offset: int, remote_write: bool
    ) -> MR:
        if dmabuf_fd is None:  # nvidia-peermem resolves the GPU's own addresses
            return self.register(address, length, remote_read=not remote_write, remote_write=remote_write)
        return self._registered(
            lambda access: DmaBufMR(self._pd, length, access, dmabuf_fd, offset=offset),
            not remote_write,
            remote_write,
        )

    def _registered(self, make, remote_read: bool, remote_write: bool) -> MR:
        # Never IBV_ACCESS_RELAXED_ORDERING: the protocol needs writes to land in order.
        access = e.IBV_ACCESS_LOCAL_WRITE
        access |= e.IBV_ACCESS_REMOTE_READ if remote_read else 0
        access |= e.IBV_ACCESS_REMOTE_WRITE if remote_write else 0
        try:
            return make(access)
        except PyverbsError as error:
            raise TransportError(
                f"memory cannot be registered with {self.name} ({error}): raise the limit of locked memory "
                "(ulimit -l)"
            ) from None

    def queue_pair(self, depth: int) -> PyverbsQueuePair:
        return PyverbsQueuePair(
            self._context, self._pd, depth, self._gid, self._gid_index, self._lid, self._mtu
        )

    def close(self) -> None:
        self._pd.close()
        self._context.close()


class PyverbsQueuePair:
    """`rdma.verbs.provider.QueuePair` over pyverbs."""

    def __init__(
        self, context: Context, pd: PD, depth: int, gid: str, gid_index: int, lid: int, mtu: int
    ) -> None:
        self.depth = depth
        self._gid_index = gid_index
        cap = QPCap(
            max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=INLINE_BYTES
        )
        try:
            self._cq = CQ(context, depth)
            self._qp = QPEx(
                context,
                QPInitAttrEx(
                    qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0, pd=pd,
                    comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                    send_ops_flags=e.IBV_QP_EX_WITH_RDMA_READ | e.IBV_QP_EX_WITH_RDMA_WRITE,
                ),
            )  # fmt: skip
        except PyverbsError as error:
            raise TransportError(f"a queue pair cannot be made ({error}): is the device still up?") from None
        self._sge = SGE(0, 0, 0)
        self.address = QueueAddress(self._qp.qp_num, random.getrandbits(24), gid, lid, mtu)

    def connect(self, peer: QueueAddress) -> None:
        attributes = QPAttr(port_num=PORT)
        attributes.qp_access_flags = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
        attributes.path_mtu = min(self.address.mtu, peer.mtu)
        attributes.dest_qp_num = peer.qpn
        attributes.rq_psn, attributes.sq_psn = peer.psn, self.address.psn
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = READS_IN_FLIGHT
        attributes.timeout, attributes.retry_cnt = _TIMEOUT, _RETRIES
        attributes.rnr_retry, attributes.min_rnr_timer = _RETRIES, _RNR_TIMER
        route = GlobalRoute(dgid=GID(peer.gid), sgid_index=self._gid_index, hop_limit=64)
        attributes.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=route, dlid=peer.lid)
        try:
            self._qp.to_rts(attributes)
        except PyverbsError as error:
            raise TransportError(
                f"the peer's queue pair at {peer.gid} cannot be reached ({error}): check that both RDMA "
                "interfaces are in one network"
            ) from None

    def post(self, chain: list[OneSided], lkey: int, number: int) -> None:
        qp, sge = self._qp, self._sge
        sge.lkey = lkey
        qp.wr_start()
        last = len(chain) - 1
        for k, (is_read, local, length, remote, rkey) in enumerate(chain):
            qp.wr_id = number
            flags = e.IBV_SEND_SIGNALED if k == last else 0
            if is_read or length > INLINE_BYTES:
                qp.wr_flags = flags
                (qp.wr_rdma_read if is_read else qp.wr_rdma_write)(rkey, remote)
                sge.addr, sge.length = local, length
                qp.wr_set_sge(sge)
            else:
                qp.wr_flags = flags | e.IBV_SEND_INLINE
                qp.wr_rdma_write(rkey, remote)
                qp.wr_set_inline_data(local, length)
        try:
            qp.wr_complete()
        except PyverbsError as error:
            raise TransportError(f"a chain of {len(chain)} operations was not accepted: {error}") from None

    def poll(self) -> list[tuple[int, int]]:
        count, completions = self._cq.poll(_POLL_BATCH)
        return [(int(one.wr_id), int(one.status)) for one in completions] if count else []

    def break_off(self) -> None:
        self._qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def close(self) -> None:
        self._qp.close()
        self._cq.close()

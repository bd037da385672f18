"""What a ring's host tells a front end that it admits: everything that one-sided access needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rdma.transport import RingMap
from rdma.verbs.grants import Grant
from rdma.verbs.provider import QueueAddress
from ring.layout import RingGeometry


@dataclass(frozen=True)
class Welcome:
    """The answer to a front end's wish to attach.

    Attributes
    ----------
    session : int
        Names the session, so that it can be taken up again.
    host : int
        Names this life of the ring's host.
    queue : QueueAddress
        The host's queue pair for this front end.
    grants : tuple of Grant
        What the session may touch.
    ring : RingMap
    about : dict
        What the host tells of itself, such as the model's name.
    """

    session: int
    host: int
    queue: QueueAddress
    grants: tuple[Grant, ...]
    ring: RingMap
    about: dict[str, Any]

    def to_json(self) -> dict:
        return {
            "session": self.session,
            "host": self.host,
            "queue": self.queue.to_json(),
            "grants": [grant.to_json() for grant in self.grants],
            "geometry": asdict(self.ring.geometry),
            "epoch": self.ring.epoch,
            "max_model_len": self.ring.max_model_len,
            "vocab_size": self.ring.vocab_size,
            "about": self.about,
        }

    @classmethod
    def from_json(cls, given: dict) -> Welcome:
        """Inverse of `to_json`; `ValueError` for anything else."""
        try:
            geometry = RingGeometry(**{name: int(value) for name, value in given["geometry"].items()})
            sizes = (int(given[name]) for name in ("epoch", "max_model_len", "vocab_size"))
            return cls(
                session=int(given["session"]),
                host=int(given["host"]),
                queue=QueueAddress.from_json(given["queue"]),
                grants=tuple(Grant.from_json(grant) for grant in given["grants"]),
                ring=RingMap(geometry, *sizes),
                about=dict(given["about"]),
            )
        except (KeyError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
            raise ValueError(f"not a description of a ring: {error!r}") from None

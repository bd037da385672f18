"""Layout of the ring: every section, word and offset, in one place.

One contiguous buffer of int64 words (`ring.sections`); the token arena at its end holds
int32. Every word has one writer (NIC atomics are not atomic against GPU atomics), and words
of different writers lie on different cache lines.

====================  ==========================================  =============
section               content                                     writer
====================  ==========================================  =============
``INFO``              sizes, epoch, owner                         creator, once
``STATUS``            heartbeat, error, counters                  scheduler
``COMMAND``           drain, shutdown                             host
``FE_PORT``           beat of each front end                      that front end
``FE_FENCE``          death declared, by generation               host
``FE_SCHED``          drained generation, head of the token log   scheduler
``CTL``               control records, 2 words a slot             scheduler
``DOORBELL``          lowest incarnation bit of 32 slots a word   owning front end
``REQ``               incarnation and command of a slot           owning front end
``DESCRIPTOR``        the request in a slot                       owning front end
``LOG``               token log of each front end                 scheduler
``FLIGHT``            flight recorder                             scheduler
``ARENA``             int32 tokens: prompts (front end) and       see left
                      answers (scheduler), a share a front end
====================  ==========================================  =============

``FE_SCHED`` lies right before ``CTL``: one read brings both.
"""

from __future__ import annotations

from dataclasses import dataclass

from ring.sections import LINE, TABLE, Section, layout
from ring.words import SLOTS_PER_DOORBELL

RING_MAGIC = 0x424C4E4B_52494E47  # "BLNKRING"
RING_VERSION = 2

SECTION_NAMES = (
    "info", "status", "command", "fe_port", "fe_fence", "fe_sched", "ctl",
    "doorbell", "req", "descriptor", "log", "flight", "arena",
)  # fmt: skip
(INFO, STATUS, COMMAND, FE_PORT, FE_FENCE, FE_SCHED, CTL, DOORBELL, REQ, DESCRIPTOR, LOG, FLIGHT, ARENA) = (
    range(len(SECTION_NAMES))
)
TABLE_OF_INFO = TABLE + 2 * INFO  # word that holds the start of INFO, for who has no view yet

# --- INFO: written once by the creator ---
(I_SLOTS, I_FRONT_ENDS, I_ARENA_TOKENS, I_LOG_ENTRIES, I_FLIGHT_ENTRIES, I_EPOCH, I_OWNER_PID, I_PLACEMENT,
 I_MAX_MODEL_LEN, I_VOCAB_SIZE, I_BOOT_TIME_NS) = range(11)  # fmt: skip
INFO_WORDS = 16
HOST_PLACEMENT, DEVICE_PLACEMENT = 0, 1  # doorbells are scanned, or the records themselves

# --- STATUS: the scheduler's ---
(S_HEARTBEAT, S_ERROR, S_ERROR_ARG, S_STEPS, S_LAUNCHES, S_WINDOWS, S_RETRIES, S_PREFILLS, S_DECODES,
 S_TOKENS, S_WAITING, S_SEATS_USED, S_BLOCKS_FREE, S_FINISHED, S_PREEMPTIONS, S_CLAIMS, S_PHASE,
 S_IN_FLIGHT_SINCE, S_LOOPS, S_POLICY, S_POLICY_WANTED, S_POLICY_NAME) = range(22)  # fmt: skip
STATUS_WORDS = 32  # S_POLICY: last request to swap that was served; _WANTED: that no preset serves
S_SWAP_PAUSE = S_POLICY_NAME + 6  # ns that the scheduler stood still for the last policy that was loaded
PHASE_OFF, PHASE_RUNNING, PHASE_STOPPED, PHASE_FAULTED, PHASE_PARKED = 0, 1, 2, 3, 4

# --- COMMAND: the host's ---
C_STOP = 0  # RUN, DRAIN or STOP
RUN, DRAIN, STOP = 0, 1, 2  # DRAIN: end when nothing is live; STOP: end what is live, now
C_POLICY, C_POLICY_NAME = 1, 2  # number of the last request to swap the policy; its name, six words
C_REFUSED = 9  # number of the last request to swap that cannot be served
C_PARK = 8  # not 0: return at a step boundary with nothing in flight, and wait to be run again
COMMAND_WORDS = 16

# --- per front end, a line each ---
FE_WORDS = LINE
(P_BEAT, P_PID, P_LOG_TAIL, P_GENERATION, P_STARTED) = range(
    5
)  # FE_PORT: heartbeat; process (0: none); entries
# of the log read (for observers); fence generation it attached at; start time of the process
F_FENCE = 0  # FE_FENCE: generation of the last declared death
D_DRAINED, D_LOG_HEAD = 0, 1  # FE_SCHED: generation drained, entries appended since the ring began

CTL_WORDS = 2
W0, W1 = 0, 1  # CTL: the record; advisory time of its last change

# --- DESCRIPTOR: a request, written before its SUBMIT ---
(Q_PROMPT_START, Q_PROMPT_LEN, Q_OUTPUT_START, Q_MAX_TOKENS, Q_MIN_TOKENS, Q_DEADLINE_NS,
 Q_TEMPERATURE_MICRO, Q_TOP_P_MICRO, Q_TOP_K, Q_SEED, Q_FLAGS, Q_PRIORITY, Q_TENANT, Q_LOGPROBS,
 Q_LOGPROBS_START, Q_STOP_COUNT, Q_STOP_0) = range(17)  # fmt: skip
MAX_STOP_IDS = 16
MAX_LOGPROBS = 20  # alternatives of a token; Q_LOGPROBS is one more than those asked for, 0 for nothing
DESCRIPTOR_WORDS = 32
FLAG_IGNORE_EOS = 1
NO_DEADLINE = 0

# --- FLIGHT ---
FLIGHT_WORDS = 8  # an entry: number, time, event, four arguments, spare

MICRO = 1_000_000  # temperature and top-p travel as integers of this scale


@dataclass(frozen=True)
class RingGeometry:
    """Sizes of a ring. Immutable; a peer reads it back from the buffer.

    Attributes
    ----------
    slots : int
        Multiple of 32 times `front_ends` (each front end owns whole doorbell words).
    arena_tokens : int
        int32 tokens for prompts and answers, divided equally among front ends.
    log_entries : int
        Entries of each token log; a power of two, and at least four times the seats: the
        scheduler writes up to a seat's worth each ahead of the head, and a reader that was
        overrun finds out by the distance it keeps.
    """

    slots: int = 4096
    front_ends: int = 1
    arena_tokens: int = 4 << 20
    log_entries: int = 1 << 16
    flight_entries: int = 1 << 12

    def __post_init__(self) -> None:
        if self.front_ends < 1 or self.slots < 1 or self.slots % (SLOTS_PER_DOORBELL * self.front_ends):
            raise ValueError(
                f"slots={self.slots} must be a multiple of {SLOTS_PER_DOORBELL} for each of "
                f"{self.front_ends} front ends"
            )
        if self.slots > 1 << 16:
            raise ValueError(f"slots={self.slots}: a log entry names at most 65536 slots")
        for name in ("log_entries", "flight_entries"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name}={value} must be a power of two")
        if self.arena_tokens < 2 * self.front_ends:
            raise ValueError(f"arena_tokens={self.arena_tokens} is too small")

    @property
    def slots_per_front_end(self) -> int:
        return self.slots // self.front_ends

    @property
    def arena_share(self) -> int:
        """Tokens of the arena that one front end owns."""
        return self.arena_tokens // self.front_ends

    def sections(self) -> list[Section]:
        """The sections, in their order in the buffer."""
        return [
            Section("info", INFO_WORDS),
            Section("status", STATUS_WORDS),
            Section("command", COMMAND_WORDS),
            Section("fe_port", self.front_ends, FE_WORDS),
            Section("fe_fence", self.front_ends, FE_WORDS),
            Section("fe_sched", self.front_ends, FE_WORDS),
            Section("ctl", self.slots, CTL_WORDS),
            Section("doorbell", self.slots // SLOTS_PER_DOORBELL),
            Section("req", self.slots),
            Section("descriptor", self.slots, DESCRIPTOR_WORDS),
            Section("log", self.front_ends, self.log_entries),
            Section("flight", self.flight_entries, FLIGHT_WORDS),
            Section("arena", (self.arena_tokens + 1) // 2),
        ]

    def words(self) -> int:
        """Size of the ring in words."""
        return layout(self.sections())[1]

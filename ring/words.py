"""The packed words of the slot protocol. All int64, bit 63 clear.

================  =====================================================================
word              bits
================  =====================================================================
``req[s]``        incarnation 8–38 · command 0–7              (front end writes)
``ctl[s].w0``     incarnation 32–62 · tokens published 8–31 · finish reason 4–7 · state 0–3
                  (scheduler writes; CAS among its lanes)
log entry         incarnation, low 15 bits, 48–62 · slot 32–47 · token 0–31
``doorbell[w]``   bit b: lowest incarnation bit of slot 32 w + b   (front end writes)
================  =====================================================================
"""

from __future__ import annotations

from ring.jit import njit

INCARNATION_MASK = (1 << 31) - 1
TOKENS_MASK = (1 << 24) - 1
LOG_INCARNATION_MASK = (1 << 15) - 1
SLOTS_PER_DOORBELL = 32

# commands of req
NONE, SUBMIT, CANCEL, RELEASE = 0, 1, 2, 3


@njit
def pack_req(incarnation, command):
    """A `req` word."""
    return (incarnation << 8) | command


@njit
def req_incarnation(word):
    return (word >> 8) & INCARNATION_MASK


@njit
def req_command(word):
    return word & 0xFF


@njit
def pack_ctl(incarnation, tokens, reason, state):
    """A `ctl` word: all that a reader needs to be consistent, in eight bytes."""
    return (incarnation << 32) | (tokens << 8) | (reason << 4) | state


@njit
def ctl_incarnation(word):
    return (word >> 32) & INCARNATION_MASK


@njit
def ctl_tokens(word):
    return (word >> 8) & TOKENS_MASK


@njit
def ctl_reason(word):
    return (word >> 4) & 0xF


@njit
def ctl_state(word):
    return word & 0xF


@njit
def next_incarnation(incarnation):
    """Successor of an incarnation; wraps within its 31 bits."""
    return (incarnation + 1) & INCARNATION_MASK


@njit
def pack_log(slot, incarnation, token):
    """An entry of a token log."""
    return ((incarnation & LOG_INCARNATION_MASK) << 48) | (slot << 32) | token


@njit
def log_slot(word):
    return (word >> 32) & 0xFFFF


@njit
def log_incarnation(word):
    """The low 15 bits of the incarnation that an entry belongs to."""
    return (word >> 48) & LOG_INCARNATION_MASK


@njit
def log_token(word):
    return word & 0xFFFFFFFF

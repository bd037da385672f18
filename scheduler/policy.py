"""What a policy is: at most four small functions over a read-only view of the scheduler.

=====================  =============================================  ===============================
function               answers                                        default
=====================  =============================================  ===============================
``key``                int64; the smallest is admitted first          0: by ticket, first come
``may_admit``          may this request be seated now?                yes
``prefill_or_decode``  which of the two runs next, when both could?   prefill (pause and resume)
``victim``             int64 of a seated request; the largest goes    ticket: the last to come
=====================  =============================================  ===============================

All take ``(view, request)``, but for ``prefill_or_decode(view)``; `scheduler.view` has the
questions they may ask. Keys are int64 on every target: floating point is fused differently
on each, so scores would differ. Ties go by ticket, so decisions are equal everywhere. A division by
zero answers 0 in compiled code on every target; `blink_numba.lab.check` reports it.

`may_admit` runs last, on one lane, and True seats the request: it is the only one that may
write the policy's memory. A policy that *preempts* also has its `key` taken of seated
requests: when the best of the waiting finds no room, and its key is smaller than that of the
victim by more than `margin`, the victim goes back to the waiting (recompute) and it is seated.

The scheduler calls a policy's functions with ``(hot, words, request)``, the state's two buffers
(`scheduler.state.hot_words`): a function pointer then takes three arguments, not a view of
seventeen arrays. `policy` wraps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ring.jit import uncounted, uncounted_pointer
from scheduler import state as sc
from scheduler.policy_helpers import afresh
from scheduler.state import borrowed_view

RUN_PREFILL, RUN_DECODE = 1, 0
FUNCTIONS = ("key", "may_admit", "prefill_or_decode", "victim")
ONE_ARGUMENT = ("prefill_or_decode",)
DEFAULT_BOUND = 8.0


class PolicyError(ValueError):
    """A policy cannot be run; the message names the function, the line and the reason."""


class PolicyNotFound(PolicyError):
    """There is none of that name, file or module, as seen from this process."""


class PolicyStarves(PolicyError):
    """A policy let a request wait beyond its bound; the message names the request."""


@uncounted_pointer
def by_ticket(hot, words, request):
    """All alike: the ticket decides."""
    return 0


@uncounted_pointer
def always(hot, words, request):
    """No condition beyond a free seat and blocks."""
    return 1


@uncounted_pointer
def prefill_first(hot, words):
    """Pause the decode, run the prefill, resume: the paper's inline prefill."""
    return RUN_PREFILL


@uncounted_pointer
def last_come(hot, words, request):
    """Preempt the newest."""
    return borrowed_view(hot, words).slots[request * sc.SLOT_WORDS + sc.SL_TICKET]


@dataclass(frozen=True)
class Policy:
    """A scheduling policy by its compiled functions. Make one with `policy`.

    Attributes
    ----------
    name : str
        Up to 42 ASCII characters; what ``blink-numba policy set`` is told.
    key, may_admit, prefill_or_decode, victim : callable
        Of ``(hot, words, request)``, `prefill_or_decode` of ``(hot, words)``.
    parameters : mapping of str to int
        Up to 16, with their values; `scheduler.view.parameter` reads them by position.
    preempts : bool
        Whether a waiting request may take the seat of one in service.
    margin : int
        By how much its key must be smaller.
    accounting : bool
        Whether the scheduler counts the tokens generated for each tenant.
    bound : float, optional
        What it promises to whoever it likes least: the longest wait for a first token under the
        floods of `blink_numba.lab.check`, in multiples of the longest under first come, first
        served. None: it may starve, and says so.
    sources : mapping
        The functions as written, of ``(view, request)``; those not given are missing.
    """

    name: str
    key: Callable[..., Any] = by_ticket
    may_admit: Callable[..., Any] = always
    prefill_or_decode: Callable[..., Any] = prefill_first
    victim: Callable[..., Any] = last_come
    parameters: Mapping[str, int] = field(default_factory=dict)
    preempts: bool = False
    margin: int = 0
    accounting: bool = False
    bound: float | None = DEFAULT_BOUND
    sources: Mapping[str, Callable[..., Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.name.isascii() or not 0 < len(self.name) <= 7 * sc.NAME_WORDS:
            raise PolicyError(f"policy name {self.name!r} must be 1 to {7 * sc.NAME_WORDS} ASCII characters")
        if len(self.parameters) > sc.PARAMETERS:
            raise PolicyError(
                f"policy {self.name!r} has {len(self.parameters)} parameters; at most {sc.PARAMETERS} fit"
            )
        for name, value in {**self.parameters, "margin": self.margin}.items():
            if not isinstance(value, int | np.integer) or not -(1 << 62) < value < 1 << 62:
                raise PolicyError(
                    f"policy {self.name!r}: {name}={value!r} must be a whole number below 2**62: "
                    "keys are int64 on every target; scale it (micro-units, nanoseconds)"
                )

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The four, in the order the scheduler takes them."""
        return self.key, self.may_admit, self.prefill_or_decode, self.victim

    def with_parameters(self, **values: int) -> Policy:
        """The same policy with other values; nothing is compiled anew."""
        unknown = values.keys() - self.parameters.keys()
        if unknown:
            raise PolicyError(
                f"policy {self.name!r} has no parameter {sorted(unknown)[0]!r}; "
                f"it has {', '.join(self.parameters) or 'none'}"
            )
        return dataclasses.replace(self, parameters={**self.parameters, **values})


FCFS = Policy("fcfs", bound=1.0)


def named_policy(name: str) -> Policy:
    """A shipped policy by its name, or any policy by ``module:attribute`` or ``file.py:attribute``.

    Raises
    ------
    PolicyError
        There is none; the message lists those shipped.
    """
    from scheduler.policies import find

    return find(name)


def policy(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    key: Callable[..., Any] | None = None,
    may_admit: Callable[..., Any] | None = None,
    prefill_or_decode: Callable[..., Any] | None = None,
    victim: Callable[..., Any] | None = None,
    parameters: Mapping[str, int] | None = None,
    preempts: bool = False,
    margin: int = 0,
    accounting: bool = False,
    bound: float | None = DEFAULT_BOUND,
) -> Any:
    """Make a policy from functions of ``(view, request)``.

    Either a decorator of a `key` (bare, or with options), or a call that names the functions::

        @policy
        def shortest_prompt(view, request):
            return prompt_tokens(view, request)

        mine = policy(name="mine", key=shortest, victim=longest, parameters={"weight": 3})

    A preempting policy without a `victim` preempts the largest `key`.

    Parameters
    ----------
    name : str, optional
        Default: the name of the key function.
    **others
        See `Policy`.

    Returns
    -------
    Policy
        Or a decorator that makes one.

    Raises
    ------
    PolicyError
        A function does what a kernel cannot: the line and the reason.
    """
    if function is not None and key is not None:
        raise PolicyError("the decorated function is the key: do not pass another one")

    def make(key_function: Callable[..., Any] | None) -> Policy:
        given = {"key": key_function, "may_admit": may_admit,
                 "prefill_or_decode": prefill_or_decode, "victim": victim}  # fmt: skip
        sources = {kind: body for kind, body in given.items() if body is not None}
        for kind, body in sources.items():
            if not callable(body):
                raise PolicyError(f"{kind} must be a function of (view, request), got {body!r}")
        default = getattr(key_function, "__name__", "policy")
        title = name if name is not None else default
        if preempts and "victim" not in sources and key_function is not None:
            sources["victim"] = key_function
        return Policy(
            title, **_wrap(title, sources), parameters=dict(parameters or {}), preempts=preempts,
            margin=margin, accounting=accounting, bound=bound, sources=sources,
        )  # fmt: skip

    named = any(body is not None for body in (key, may_admit, prefill_or_decode, victim))
    if function is None and not named:
        return make  # @policy(option=…)
    return make(function if function is not None else key)


def watchful(chosen: Policy) -> Policy:
    """The same policy, compiled to raise at a division by zero and at an index beyond an array.

    So are the functions that it calls, in copies: those of the policy itself go on answering.
    """
    options = {"error_model": "python", "boundscheck": True}
    bodies = {kind: getattr(body, "py_func", body) for kind, body in chosen.sources.items()}
    sources = {kind: afresh(body, **options) for kind, body in bodies.items()}
    functions = _wrap(chosen.name, sources, **options)
    return dataclasses.replace(chosen, **functions)


def _wrap(
    title: str, sources: Mapping[str, Callable[..., Any]], **options: Any
) -> dict[str, Callable[..., Any]]:
    """The functions as the scheduler calls them: of the state's words."""
    from scheduler.policy_check import check_source

    wrapped: dict[str, Callable[..., Any]] = {}
    for kind, body in sources.items():
        check_source(title, kind, body)
        options = {"error_model": "numpy", **options}
        compiled = body if hasattr(body, "py_func") else uncounted(body, cache=False, **options)
        wrapped[kind] = _of_words_alone(compiled) if kind in ONE_ARGUMENT else _of_words(compiled)
    return wrapped


def _of_words(function: Callable[..., Any]) -> Callable[..., Any]:
    def of_words(hot, words, request):
        return int(function(borrowed_view(hot, words), request))

    return uncounted_pointer(of_words, cache=False)


def _of_words_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    def of_words(hot, words):
        return int(function(borrowed_view(hot, words)))

    return uncounted_pointer(of_words, cache=False)


# --- a policy in the scheduler's memory ---


def pack_name(name: str) -> list[int]:
    """A name as NAME_WORDS words of seven bytes: bit 63 stays clear."""
    raw = name.encode("ascii").ljust(7 * sc.NAME_WORDS, b"\0")
    return [int.from_bytes(raw[7 * k : 7 * k + 7], "little") for k in range(sc.NAME_WORDS)]


def unpack_name(words: Any) -> str:
    """The name in NAME_WORDS words."""
    raw = b"".join(int(word).to_bytes(7, "little") for word in words[: sc.NAME_WORDS])
    return raw.rstrip(b"\0").decode("ascii", "replace")


def install(state: sc.SchedulerState, chosen: Policy) -> None:
    """Put a policy in force: name, parameters, empty memory. Nothing may turn meanwhile."""
    words = state.policy
    words[sc.P_PREEMPTIVE], words[sc.P_MARGIN] = int(chosen.preempts), chosen.margin
    words[sc.P_ACCOUNTING] = int(chosen.accounting)
    words[sc.P_NAME : sc.P_NAME + sc.NAME_WORDS] = pack_name(chosen.name)
    words[sc.P_PARAMETERS : sc.P_PRESET_0] = 0
    names = [preset_name(state, index) for index in range(int(words[sc.P_PRESETS]))]
    words[sc.P_ACTIVE] = names.index(chosen.name) if chosen.name in names else 0
    values = list(chosen.parameters.values())
    words[sc.P_PARAMETERS : sc.P_PARAMETERS + len(values)] = values
    state.core[sc.K_TRY_ADMIT] = 1


def preset_name(state: sc.SchedulerState, index: int) -> str:
    """Name of a preset."""
    here = sc.P_PRESET_0 + index * sc.PRESET_WORDS + sc.PR_NAME
    return unpack_name(state.policy[here : here + sc.NAME_WORDS])


def preload(state: sc.SchedulerState, presets: list[Policy]) -> None:
    """Write the policies that a running scheduler can swap to by itself."""
    if len(presets) > sc.PRESETS:
        raise PolicyError(f"{len(presets)} policies to preload; at most {sc.PRESETS} fit")
    for index, chosen in enumerate(presets):
        here = sc.P_PRESET_0 + index * sc.PRESET_WORDS
        record = state.policy[here : here + sc.PRESET_WORDS]
        record[:] = 0
        record[sc.PR_PREEMPTIVE], record[sc.PR_MARGIN] = int(chosen.preempts), chosen.margin
        record[sc.PR_ACCOUNTING] = int(chosen.accounting)
        record[sc.PR_NAME : sc.PR_NAME + sc.NAME_WORDS] = pack_name(chosen.name)
        values = list(chosen.parameters.values())
        record[sc.PR_PARAMETERS : sc.PR_PARAMETERS + len(values)] = values
    state.policy[sc.P_PRESETS] = len(presets)

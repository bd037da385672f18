"""Proof of the slot protocol, and the harness for those who change it.

A model checker over the pure-Python copy of the real modules (`world`, `accesses`, `model`,
`actors`, `front_ends`, `explore`, `walk`): actors are greenlets, every atomic on a word that
others touch is a switch point, payloads are tracked for happens-before. `invariants` is the one
list of what must hold, `configurations` what is searched, `mutants` the planted bugs that show
what the harness catches, `threads` the same protocol on real threads and processes, `machine` the
Hypothesis state machine, `hammer_steps` and `hammer_kernels` contended claims on a GPU. ``blink-
numba verify`` runs the battery.

Modules are imported one by one: the checker needs greenlet, `machine` Hypothesis.
"""

__all__: list[str] = []

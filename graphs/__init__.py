"""What the scheduler launches: step buffers, the grid of shapes, launchers.

`step_io` is the contract between scheduler and engine, `grid` the O(1) way from a step's size
to its graph, `launcher` the one call that launches it (on the CPU, a launcher that keeps the
device's rules). On the GPU: `capture` makes executables of an engine's steps, `device_launch`
is the shim that launches them from a kernel, `strategies` the ways to do so, `conditional`
the loop as one graph, `host_launch` the driver's launch without the interpreter.

Imports only `ring`; CUDA stands behind `_cuda` and needs the ``cuda`` extra.
"""

from graphs.grid import DECODE, EXECS, PREFILL, GraphTable, make_table, shapes, table_view
from graphs.launcher import WINDOW, Launcher, launch, launcher_view, make_launcher
from graphs.step_io import EngineSpec, StepIO, format_step, step_view, step_words

__all__ = [
    "DECODE",
    "EXECS",
    "PREFILL",
    "WINDOW",
    "EngineSpec",
    "GraphTable",
    "Launcher",
    "StepIO",
    "format_step",
    "launch",
    "launcher_view",
    "make_launcher",
    "make_table",
    "shapes",
    "step_view",
    "step_words",
    "table_view",
]

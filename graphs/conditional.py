"""A loop as one graph: a WHILE node whose body is a scheduler kernel and a SWITCH over engine graphs.

The third way to keep the host out of the loop, beside fire-and-forget and tail launches. The
scheduler kernel chooses the graph of the turn with `set_conditional(switch, index)` (an index
past the last runs none) and goes on with `set_conditional(loop, 1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphs._cuda import check, driver

_TYPE = driver.CUgraphConditionalNodeType
_CAPTURE_MODE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def _add_conditional(graph, after: list, handle, kind, branches: int, context) -> tuple:
    """Add a conditional node after `after`; returns it and its body graphs."""
    parameters = driver.CUgraphNodeParams()
    parameters.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    parameters.conditional.handle = handle
    parameters.conditional.type = kind
    parameters.conditional.size = branches
    parameters.conditional.ctx = context
    node = check(
        driver.cuGraphAddNode(graph, after or None, None, len(after), parameters), "adding a conditional node"
    )
    return node, list(parameters.conditional.phGraph_out[:branches])


def _capture_into(graph, enqueue: Callable[[], None], stream, doing: str) -> None:
    check(driver.cuStreamBeginCaptureToGraph(int(stream), graph, None, None, 0, _CAPTURE_MODE), doing)
    try:
        enqueue()
    except BaseException:
        driver.cuStreamEndCapture(int(stream))
        raise
    check(driver.cuStreamEndCapture(int(stream)), doing)


def _last_nodes(graph) -> list:
    """Nodes on which no other depends."""
    count = check(driver.cuGraphGetNodes(graph, 0), "counting nodes")[1]
    nodes = list(check(driver.cuGraphGetNodes(graph, count), "listing nodes")[0])[:count]
    return [node for node in nodes if _dependents(node) == 0]


def _dependents(node) -> int:
    return int(check(driver.cuGraphNodeGetDependentNodes(node, 0), "reading edges")[-1])


def instantiate_while(scheduler: Callable[[int, int], None], branches: Sequence[Callable[[], None]], stream):
    """Executable of a graph that loops on the device until the scheduler kernel stops it.

    Parameters
    ----------
    scheduler : callable
        ``scheduler(loop, switch)`` launches the scheduler kernel on `stream`, giving it the two
        conditional handles (int).
    branches : sequence of callables
        Each enqueues a step of one engine shape on `stream`. Without any there is no SWITCH node,
        and its handle is 0.

    Returns
    -------
    CUgraphExec
        To be launched by the host, once.
    """
    context = check(driver.cuCtxGetCurrent(), "reading the current context")
    graph = check(driver.cuGraphCreate(0), "creating a graph")
    assign = int(driver.CU_GRAPH_COND_ASSIGN_DEFAULT)
    doing = "creating a conditional's handle"
    loop = check(driver.cuGraphConditionalHandleCreate(graph, context, 1, assign), doing)
    _, (body,) = _add_conditional(graph, [], loop, _TYPE.CU_GRAPH_COND_TYPE_WHILE, 1, context)
    switch = 0
    if branches:
        switch = check(driver.cuGraphConditionalHandleCreate(body, context, len(branches), assign), doing)
    _capture_into(body, lambda: scheduler(int(loop), int(switch)), stream, "capturing the scheduler")
    if branches:
        _, bodies = _add_conditional(
            body, _last_nodes(body), switch, _TYPE.CU_GRAPH_COND_TYPE_SWITCH, len(branches), context
        )
        for branch, branch_graph in zip(branches, bodies, strict=True):
            _capture_into(branch_graph, branch, stream, "capturing a step into a switch")
    executable = check(driver.cuGraphInstantiate(graph, 0), "instantiating the loop")
    driver.cuGraphDestroy(graph)
    check(driver.cuGraphUpload(executable, int(stream)), "uploading the loop")
    return executable

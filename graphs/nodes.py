"""What a captured graph is made of, and whether the device may launch it."""

from __future__ import annotations

from collections import Counter

from graphs._cuda import check, driver

_TYPE = driver.CUgraphNodeType
DEVICE_LAUNCHABLE = frozenset(
    (
        _TYPE.CU_GRAPH_NODE_TYPE_KERNEL,
        _TYPE.CU_GRAPH_NODE_TYPE_MEMCPY,
        _TYPE.CU_GRAPH_NODE_TYPE_MEMSET,
        _TYPE.CU_GRAPH_NODE_TYPE_GRAPH,
    )
)


class NodeError(RuntimeError):
    """A graph holds a node that a device-launched graph may not hold."""


def graph_nodes(graph) -> list:
    """Nodes of a ``CUgraph``, those of child graphs after their parents."""
    count = check(driver.cuGraphGetNodes(graph, 0), "counting a graph's nodes")[1]
    nodes = list(check(driver.cuGraphGetNodes(graph, count), "listing a graph's nodes")[0])[:count]
    found = []
    for node in nodes:
        found.append(node)
        if node_type(node) == _TYPE.CU_GRAPH_NODE_TYPE_GRAPH:
            child = check(driver.cuGraphChildGraphNodeGetGraph(node), "reading a child graph")
            found += graph_nodes(child)
    return found


def node_type(node):
    """``CUgraphNodeType`` of a node."""
    return check(driver.cuGraphNodeGetType(node), "reading a node's type")


def count_nodes(graph) -> Counter[str]:
    """How many nodes of each type a graph has, child graphs' included; ``{"kernel": 303}``."""
    return Counter(_short_name(node_type(node)) for node in graph_nodes(graph))


def check_device_launchable(graph, name: str) -> Counter[str]:
    """Raise `NodeError` unless every node may be in a device-launched graph; else count them.

    CUDA itself says only that instantiation failed; this says what is in the way.
    """
    unfit = Counter(
        _short_name(kind) for kind in map(node_type, graph_nodes(graph)) if kind not in DEVICE_LAUNCHABLE
    )
    if unfit:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(unfit.items()))
        raise NodeError(
            f"graph {name} cannot be launched from the device: it holds {listed} node(s), and only kernel, "
            "memcpy, memset and child graph nodes are allowed (host callbacks, events and allocations "
            "must stay outside the step)"
        )
    return count_nodes(graph)


def _short_name(kind) -> str:
    return kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()

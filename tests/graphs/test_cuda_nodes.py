"""Node checks and the capture's care for errors, with the driver replaced: no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings", reason="needs the CUDA bindings")

from graphs import _cuda, capture, nodes
from graphs._cuda import CudaError, driver

KIND = driver.CUgraphNodeType
OK = driver.CUresult.CUDA_SUCCESS


class FakeGraph:
    """A graph as a list of nodes: a node is its type, or (type, child graph)."""

    def __init__(self, *nodes) -> None:
        self.nodes = nodes


@pytest.fixture
def fake_driver(monkeypatch):
    replaced = SimpleNamespace(
        cuGraphGetNodes=lambda graph, count: (OK, list(graph.nodes), len(graph.nodes)),
        cuGraphNodeGetType=lambda node: (OK, node[0] if isinstance(node, tuple) else node),
        cuGraphChildGraphNodeGetGraph=lambda node: (OK, node[1]),
    )
    monkeypatch.setattr(nodes, "driver", replaced)


def test_nodes_are_counted_through_child_graphs(fake_driver):
    child = FakeGraph(KIND.CU_GRAPH_NODE_TYPE_KERNEL, KIND.CU_GRAPH_NODE_TYPE_MEMSET)
    graph = FakeGraph(KIND.CU_GRAPH_NODE_TYPE_KERNEL, (KIND.CU_GRAPH_NODE_TYPE_GRAPH, child))
    assert nodes.check_device_launchable(graph, "decode 4") == {"kernel": 2, "memset": 1, "graph": 1}


def test_what_may_not_be_launched_from_the_device_is_named(fake_driver):
    child = FakeGraph(KIND.CU_GRAPH_NODE_TYPE_HOST, KIND.CU_GRAPH_NODE_TYPE_HOST)
    graph = FakeGraph(KIND.CU_GRAPH_NODE_TYPE_MEM_ALLOC, (KIND.CU_GRAPH_NODE_TYPE_GRAPH, child))
    with pytest.raises(nodes.NodeError, match=r"graph decode 4 .* 2 host, 1 mem_alloc"):
        nodes.check_device_launchable(graph, "decode 4")


def test_a_failed_enqueue_ends_the_capture(monkeypatch):
    calls = []
    monkeypatch.setattr(
        capture,
        "driver",
        SimpleNamespace(
            CUstreamCaptureMode=driver.CUstreamCaptureMode,
            cuStreamBeginCapture=lambda stream, mode: calls.append("begin") or (OK,),
            cuStreamEndCapture=lambda stream: calls.append("end") or (OK, "graph"),
        ),
    )

    def enqueue():
        raise KeyError("unprepared product")

    with pytest.raises(KeyError, match="unprepared product"):
        capture.capture(enqueue, 7, "decode 1")
    assert calls == ["begin", "end"]
    assert capture.capture(lambda: None, 7, "decode 1") == "graph"


def test_driver_errors_say_what_was_being_done(monkeypatch):
    failed = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(_cuda, "driver", SimpleNamespace(
        CUresult=driver.CUresult, cuGetErrorString=lambda error: (OK, b"out of memory")
    ))  # fmt: skip
    with pytest.raises(
        CudaError, match=r"uploading graph decode 1: CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)"
    ):
        _cuda.check((failed,), "uploading graph decode 1")

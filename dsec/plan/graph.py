"""Drawing a plan: its stages collapsed, one node a stage, as text and as Mermaid."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from dsec.plan import values
from dsec.plan.nodes import Node, Source, StageGraph
from dsec.plan.values import Expr

__all__ = ["mermaid", "stage_graph", "text"]


def stage_graph(graph: StageGraph) -> nx.DiGraph[str]:
    """Stages by path, with ``instances``, ``worker`` and ``uses``; edges carry the ``label`` of what flows."""
    drawn: nx.DiGraph[str] = nx.DiGraph()
    for node in _walk(graph.nodes):
        drawn.add_node(node.path, uses=node.uses, worker=node.placement.worker, instances=_count(graph, node))
    for top in graph.nodes:
        _connect(drawn, top, "", (graph.nodes,))
    return drawn


def text(graph: StageGraph) -> str:
    """One line a stage, in an order in which inputs come first, with what it takes and from where."""
    drawn = stage_graph(graph)
    lines = [f"{graph.plan}: {len(graph.lanes)} session{'' if len(graph.lanes) == 1 else 's'}"]
    for node in _walk(graph.nodes):
        depth = node.path.count(".")
        facts = drawn.nodes[node.path]
        what = f"loop x {_times(graph, node)}" if node.loop is not None else f"{node.uses} [{facts['worker']}]"
        lines.append(f"{'  ' * depth}{node.name}  {what}  {facts['instances']}")
        edges: list[tuple[str, str, str]] = sorted(drawn.in_edges(node.path, data="label"))
        for before, _, label in edges:
            lines.append(f"{'  ' * depth}  <- {before}{f' ({label})' if label else ''}")
    return "\n".join(lines)


def mermaid(graph: StageGraph) -> str:
    """A Mermaid flowchart; loops are subgraphs."""
    drawn = stage_graph(graph)
    lines = ["flowchart LR"]
    for node in graph.nodes:
        lines.extend(_boxes(graph, node, drawn, "  "))
    edges: list[tuple[str, str, str]] = list(drawn.edges(data="label"))
    for before, after, label in edges:
        arrow = f"-- {label} -->" if label else "-.->"
        lines.append(f"  {_id(before)} {arrow} {_id(after)}")
    return "\n".join(lines)


def _boxes(graph: StageGraph, node: Node, drawn: nx.DiGraph[str], indent: str) -> Iterator[str]:
    if node.loop is None:
        facts = drawn.nodes[node.path]
        yield f'{indent}{_id(node.path)}["{node.name}<br/>{facts["instances"]}<br/>{facts["worker"]}"]'
        return
    yield f'{indent}subgraph {_id(node.path)}["{node.name} x {_times(graph, node)}"]'
    for inner in node.loop.nodes:
        yield from _boxes(graph, inner, drawn, indent + "  ")
    yield f"{indent}end"


def _connect(drawn: nx.DiGraph[str], node: Node, prefix: str, scopes: tuple[tuple[Node, ...], ...]) -> None:
    path = f"{prefix}{node.name}"
    for name, source in node.inputs.items():
        _edge(drawn, source, path, name, prefix)
    for before in node.after:
        drawn.add_edge(f"{prefix}{before}", path, label="")
    if node.loop is None:
        return
    for name, (start, following) in node.loop.carry.items():
        _edge(drawn, start, path, name, prefix)
        if following.kind == "stage":
            drawn.add_edge(f"{path}.{following.name}", path, label=f"next {name}")
    for inner in node.loop.nodes:
        _connect(drawn, inner, f"{path}.", (node.loop.nodes, *scopes))


def _edge(drawn: nx.DiGraph[str], source: Source, path: str, name: str, prefix: str) -> None:
    if source.kind == "anchor":
        drawn.add_edge(f"anchor:{source.name[:12]}", path, label=name)
    elif source.kind == "init":
        drawn.add_edge(f"init.{source.name}", path, label=name)
    elif source.kind == "carry":
        loop = ".".join(path.split(".")[: len(path.split(".")) - 1 - source.frame])
        drawn.add_edge(loop, path, label=f"carry {source.name}")
    else:
        scope = prefix.rstrip(".").split(".") if prefix else []
        outer = scope[: len(scope) - source.frame]
        gather = "[*]" if source.gather is not None else ""
        drawn.add_edge(".".join([*outer, source.name]), path, label=f"{source.output}{gather}")


def _times(graph: StageGraph, node: Node) -> object:
    """How often a loop runs at most; the expression itself where sessions differ in it."""
    times = node.loop.times if node.loop is not None else 1
    if not isinstance(times, Expr):
        return times
    try:
        return values.evaluate(times, {"params": graph.params})
    except values.ExprError:
        return str(times)


def _walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        if node.loop is not None:
            yield from _walk(node.loop.nodes)


def _count(graph: StageGraph, node: Node) -> str:
    cells = len(node.cells)
    if "." not in node.path:
        groups = len(graph.lanes) if node.in_session else _groups(graph, node)
        return f"{groups * cells:,} instance{'' if groups * cells == 1 else 's'}"
    return f"{cells} per iteration"


def _groups(graph: StageGraph, node: Node) -> int:
    return len({tuple(str(lane.cell[axis]) for axis in node.session_axes) for lane in graph.lanes})


def _id(path: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in path)

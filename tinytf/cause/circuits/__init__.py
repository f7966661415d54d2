"""Circuits: the few edges between heads and feed-forwards that a task needs, found, run alone and compared."""

from tinytf.cause.circuits.file import Overlap
from tinytf.cause.circuits.finding import Circuit, circuit
from tinytf.cause.circuits.graph import CircuitEdge, CircuitNode, Graph, graph_of

__all__ = ["Circuit", "CircuitEdge", "CircuitNode", "Graph", "Overlap", "circuit", "graph_of"]

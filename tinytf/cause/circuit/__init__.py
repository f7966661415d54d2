"""Circuits: the few edges between heads and feed-forwards that a task needs, found, run alone and compared."""

from tinytf.cause.circuit.choice import Choice, CircuitEdge, CircuitNode, Overlap
from tinytf.cause.circuit.finding import Circuit, circuit
from tinytf.cause.circuit.graph import Graph, graph_of

__all__ = ["Choice", "Circuit", "CircuitEdge", "CircuitNode", "Graph", "Overlap", "circuit", "graph_of"]

"""Typed graphs of pooling and glue: build a program, run it, push tangents through it, pull cotangents back."""

from .build import Graph, Var
from .node import GraphError, NodeOp, jvp_available, vjp_available
from .program import Node, Program
from .table import OPS, register

__all__ = [
    "OPS",
    "Graph",
    "GraphError",
    "Node",
    "NodeOp",
    "Program",
    "Var",
    "jvp_available",
    "register",
    "vjp_available",
]

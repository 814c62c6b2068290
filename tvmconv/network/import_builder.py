"""The builder of a model's module during its import, which knows the node that is being imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import tvm
from tvm import relax, tirx

from .size_facts import SizeFacts


class Imported(NamedTuple):
    """The module that an importer made of a model."""

    mod: tvm.IRModule
    inputs: list[str]
    """The framework's names of the parameters of "main"."""
    outputs: list[str]
    facts: SizeFacts
    """The bounds of open sizes, and the conditions that the importer put on them."""
    words: Mapping[str, str]
    """The nodes in words, as in "Split (node 'parts')", by the names of the variables of their results."""


def parameter_name(index: int, name: str) -> str:
    """Return the name for a parameter of "main", a C identifier: input_0_gpu_0_data_0 for the first, "gpu_0/data_0"."""
    return f"input_{index}_" + re.sub(r"\W", "_", name)


class ImportBuilder(relax.BlockBuilder):  # type: ignore[misc]
    """A builder that knows the node that is being imported, and the facts about the model's open sizes."""

    def __init__(self, facts: SizeFacts) -> None:
        """Start a module whose inputs have the open sizes of `facts`."""
        super().__init__()
        self.facts = facts
        self.words: dict[str, str] = {}
        """The nodes in words, as in "Split (node 'parts')", by the names of their variables."""
        self._name = ""

    def enter(self, name: str, words: str) -> None:
        """Import a node from now on: its variables have a name, and errors say the words."""
        self._name = name
        self.words[name] = words

    @property
    def node(self) -> str:
        """The node that is being imported, in words."""
        return self.words.get(self._name, self._name)

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit(expr, name_hint or self._name)

    def emit_output(self, output: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit_output(
            output, name_hint or (f"{output.name}_output" if isinstance(output, relax.Var) else "")
        )

    def require(self, test: bool | tirx.Expr, need: str) -> None:
        """Require that a test of open sizes holds in each call, for the node that is being imported.

        `need` goes on after the node's name, as in "needs 6 rows, not h". Raises `Refused` as `SizeFacts.require` does.
        """
        self.facts.require(test, self.node, need)

"""ONNX's Einsum at known and at open sizes, beside NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tvmconv
from tvmconv.problem.errors import InvalidArgumentError

PRODUCT, TVM = "tvmconv cpu/product", "TVM"

SIZES = {"b": 3, "c": 8, "i": 4, "j": 5, "k": 6, "s": 7, "t": 9}

CASES = [
    ("bct,bcs->bts", "bts", PRODUCT),
    ("bts,bcs->bct", "bts", PRODUCT),
    ("ij,jk->ki", "", PRODUCT),
    ("ij,j->i", "i", PRODUCT),
    ("i,i->", "i", PRODUCT),
    ("ij,ks->ijks", "i", PRODUCT),
    ("ijk,jib->kb", "ij", PRODUCT),
    ("ij,ij->ij", "i", PRODUCT),
    ("ij,jk,ks->is", "s", TVM),
    ("ij->ji", "i", TVM),
    ("ij,k->i", "", TVM),
    ("...ij,...jk->...ik", "", TVM),
]
"""Equations, the labels whose sizes are open, and the kernel that computes them."""


def network(equation: str, open_sizes: str) -> tvmconv.Network:
    terms = equation.partition("->")[0].replace("...", "b").split(",")
    shapes = [[f"{each}{i}" if each in open_sizes else SIZES[each] for each in term] for i, term in enumerate(terms)]
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    node = helper.make_node("Einsum", [each.name for each in inputs], ["y"], equation=equation, name="sums")
    graph = helper.make_graph([node], "einsum", inputs, [helper.make_empty_tensor_value_info("y")])
    return tvmconv.build(
        tvmconv.import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    )


def arrays(equation: str, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    terms = equation.partition("->")[0].replace("...", "b").split(",")
    return [rng.standard_normal([{**SIZES, **sizes}[each] for each in term]).astype("float32") for term in terms]


@pytest.mark.filterwarnings("ignore:.*on TVM's own loops")
@pytest.mark.parametrize(("equation", "open_sizes", "kernel"), CASES, ids=lambda each: str(each) or "-")
def test_einsum(equation: str, open_sizes: str, kernel: str) -> None:
    built = network(equation, open_sizes)
    found = [row.kernel for row in built.profile(*arrays(equation), repeat=1).rows if row.kernel.startswith("tvmconv")]
    assert bool(found) == (kernel == PRODUCT)
    for step in (0, 1, 5) if open_sizes else (0,):
        given = arrays(equation, **{label: SIZES[label] + step for label in open_sizes})
        expected = np.einsum(equation, *(x.astype("float64") for x in given))
        y = np.asarray(built(*given))
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def test_sizes_of_a_label_agree() -> None:
    x, y = arrays("ct,tk->ck")
    with pytest.raises(InvalidArgumentError, match=r"expected sizes for which t1 == t0: Einsum \(node 'sums'\)"):
        network("ct,tk->ck", "t")(x, y[1:])

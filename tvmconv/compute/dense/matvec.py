"""Linear layers of few rows: a weight matrix times a few vectors, so that each weight is a factor of few products.

`O[n, k] = sum over lanes of P[n, k, lane]`, where P is the sum of the terms of one lane: vectors of neighbouring input
channels are dealt to the lanes in turn.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands


def matvec(workload: ConvWorkload, vector: int, lanes: int, ahead: int, rows: int) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pixels", "weights", "parts", "product", "planes" and "output".

    Returns x and w in the workload's layouts, the epilogue's operands, and the output. "pixels" and "weights" are x and
    w in vectors, (N or K, steps, lanes, `vector`), where the number of steps is a multiple of `ahead`: past the last
    vector that one is read again, so that loads have no conditions. "parts" are the sums of single lanes, (N, K,
    lanes), without the repeated vectors, and "product" adds up the lanes. The output channels are rounded up to a
    multiple of `rows`: those past the last one read its weight.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(*workload.operands["w"], name="w")
    operands, sums = epilogue_operands(workload), workload.storage.sums
    vectors, outputs = workload.in_channels // vector, workload.out_channels
    chunks = -(-vectors // (lanes * ahead))
    rounded_outputs = -(-outputs // rows) * rows

    whole = chunks * ahead * lanes == vectors

    def vector_of(factor: te.Tensor, row: tirx.PrimExpr, index: tuple[tirx.Var, tirx.Var, tirx.Var]) -> tirx.PrimExpr:
        step, lane, element = index
        number = step * lanes + lane
        layout = workload.x_layout if factor is x else workload.weight_layout
        nearest = number if whole else tirx.min(number, vectors - 1)
        return factor(*layout.memory_index(row, nearest * vector + element, 0, 0))

    shape = (chunks * ahead, lanes, vector)
    pixels = te.compute((workload.batch, *shape), lambda n, *at: vector_of(x, n, at), name="pixels")
    weights = te.compute(
        (rounded_outputs, *shape),
        lambda k, *at: vector_of(w, k if rounded_outputs == outputs else tirx.min(k, outputs - 1), at),
        name="weights",
    )
    chunk, step, element = (
        te.reduce_axis((0, extent), name=name)
        for name, extent in (("chunk", chunks), ("step", ahead), ("element", vector))
    )

    def lane_sum(n: tirx.Var, k: tirx.Var, lane: tirx.Var) -> tirx.PrimExpr:
        vector_index = chunk * ahead + step, lane, element
        factor = pixels(n, *vector_index).astype(sums)
        if workload.zero_point:
            factor = factor - tirx.const(workload.zero_point, sums)
        term = factor * weights(k, *vector_index).astype(sums)
        if not whole:
            inside = (chunk * ahead + step) * lanes + lane < vectors
            term = tirx.if_then_else(inside, term, tirx.const(0, sums))
        return te.sum(term, axis=[chunk, step, element])

    parts = te.compute((workload.batch, rounded_outputs, lanes), lane_sum, name="parts")
    lane = te.reduce_axis((0, lanes), name="lane")
    product = te.compute(
        (workload.batch, rounded_outputs), lambda n, k: te.sum(parts[n, k, lane], axis=lane), name="product"
    )
    planes = te.compute((workload.batch, outputs, 1, 1), lambda n, k, h, v: product[n, k], name="planes")
    return [x, w, *operands.values(), epilogue(planes, workload, operands)]

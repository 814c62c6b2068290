"""Gates of squeeze and excitation."""

from __future__ import annotations

from tvmconv import ConvWorkload
from tvmconv.problem.fused.gate import Gate


def gate(
    batch: int,
    channels: int,
    squeezed: int,
    activations: tuple[str, str] = ("silu", "sigmoid"),
    dtype: str = "float32",
    bias: bool = True,
) -> Gate:
    """Return a gate of images (batch, channels, 1, 1), whose second layer has a shift."""
    sizes = ((channels, squeezed, bias), (squeezed, channels, True))
    layers = (
        ConvWorkload.conv2d(
            (batch, inputs, 1, 1), (outputs, inputs, 1, 1), dtype=dtype, shift=shift, activation=activation
        )
        for (inputs, outputs, shift), activation in zip(sizes, activations, strict=True)
    )
    return Gate(*layers)


GATES = {
    "efficientnet": gate(2, 240, 10),
    "mobilenet": gate(1, 96, 24, ("relu", "hardsigmoid"), "float16"),
    "odd": gate(3, 75, 33, ("hardswish", "tanh"), "bfloat16", bias=False),
    "one-channel": gate(2, 1, 12),
    "large": gate(1, 1152, 48, dtype="float16"),
}

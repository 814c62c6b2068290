"""Convolutions for the tensor cores whose warps have roles, each with a configuration; no emulator runs them."""

from __future__ import annotations

from tests.schedules.cases.tensor import FIRST, ONE_CHUNK, Layouts, layer, wgmma

TEAMS = {
    "1x1": (layer((3, 128, 7, 9), (64, 128, 1, 1)), wgmma(64, 64, 1, 1, 3, teams=2)),
    "1x1-ragged": (layer((3, 224, 7, 9), (64, 224, 1, 1)), wgmma(64, 64, 1, 1, 3, teams=2)),
    "1x1-ragged-stride-2": (layer((2, 120, 9, 9), (32, 120, 1, 1), stride=2), wgmma(64, 32, 1, 1, teams=2)),
    "160-channels": (layer((1, 160, 9, 7), (40, 160, 5, 1), stride=(2, 1)), wgmma(128, 40, 1, 1, 4, teams=2)),
    "48-channels": (layer((2, 48, 9, 7), (32, 48, 3, 3), "bfloat16", residual=True), wgmma(128, 32, 2, 1, 4, teams=1)),
    "96-channels": (layer((2, 96, 9, 7), (64, 96, 3, 3)), wgmma(64, 64, 1, 1, 3, teams=2)),
    "96-channels-of-two-groups-of-warps": (layer((2, 96, 9, 7), (64, 96, 3, 3)), wgmma(128, 64, 2, 1, 4, teams=1)),
    "80-channels": (layer((1, 80, 9, 7), (64, 80, 3, 3), "bfloat16"), wgmma(64, 64, 1, 2, 3, teams=1)),
    "32-channels": (layer((2, 32, 9, 9), (32, 32, 3, 3), residual=True), wgmma(64, 32, 1, 1, teams=2)),
    "96-channels-in-integers": (layer((2, 96, 9, 7), (64, 96, 3, 3), "int8"), wgmma(64, 64, 1, 1, teams=2)),
    "groups-of-96-channels": (layer((2, 192, 6, 7), (80, 96, 3, 3), groups=2), wgmma(64, 32, 1, 1, teams=2)),
    "groups-of-224-channels": (layer((2, 448, 6, 7), (64, 224, 1, 1), groups=2), wgmma(64, 32, 1, 1, teams=2)),
    "3x3": (
        layer((2, 64, 9, 7), (96, 64, 3, 3), "bfloat16", shift=True, activation="relu"),
        wgmma(64, 96, 1, 1, teams=2),
    ),
    "one-team": (layer((3, 64, 9, 8), (72, 64, 3, 3), residual=True), wgmma(128, 64, 2, 1, 4, teams=1)),
    "three-groups-of-warps": (layer((2, 128, 11, 9), (64, 128, 3, 3)), wgmma(192, 64, 3, 1, 3, teams=1)),
    "stride-2": (layer((2, 64, 12, 9), (32, 64, 3, 3), stride=2), wgmma(64, 32, 1, 1, 5, teams=2)),
    "stride-2x1-1x1": (layer((2, 64, 9, 9), (32, 64, 1, 1), stride=(2, 1), padding=0), wgmma(64, 32, 1, 1, teams=2)),
    "dilation-and-padding": (
        layer((1, 64, 12, 9), (32, 64, 3, 2), stride=(2, 1), dilation=(1, 3), padding=(0, 1, 2, 3)),
        wgmma(64, 32, 1, 1, 4, teams=2),
    ),
    "groups": (layer((2, 128, 6, 7), (80, 64, 3, 3), groups=2), wgmma(64, 32, 1, 1, teams=2)),
    "one-chunk": (ONE_CHUNK, wgmma(64, 32, 1, 1, teams=2)),
    "linear": (layer((70, 256, 1, 1), (40, 256, 1, 1), "bfloat16", FIRST), wgmma(64, 40, 1, 1, 4, teams=1)),
    "NCHW": (layer((2, 64, 7, 9), (64, 64, 3, 3), layouts=FIRST, shift=True), wgmma(128, 64, 1, 1, teams=2)),
    "narrow-channels": (layer((1, 60, 7, 9), (32, 60, 3, 3), layouts=FIRST), wgmma(128, 32, 1, 1, teams=2)),
    "integers": (
        layer((2, 128, 9, 7), (64, 128, 3, 3), "uint8", x_zero_point=9),
        wgmma(64, 64, 1, 1, teams=2),
    ),
    "tf32": (
        layer((2, 64, 9, 7), (72, 64, 3, 3), "float32", precision="tf32", shift=True, activation="relu"),
        wgmma(128, 64, 2, 1, 4, teams=1),
    ),
    "tf32-in-parts-of-104": (
        layer((1, 64, 12, 13), (200, 64, 3, 3), "float32", precision="tf32"),
        wgmma(128, 104, 2, 1, 4, teams=1),
    ),
    "tf32-rounded-ahead": (
        layer((2, 64, 9, 7), (72, 64, 3, 3), "float32", precision="tf32", shift=True),
        wgmma(64, 72, 1, 1, 4, teams=2, rounds_input=True),
    ),
    "tf32-rounded-ahead-NCHW": (
        layer((2, 96, 6, 7), (128, 96, 3, 3), "float32", FIRST, "tf32"),
        wgmma(128, 128, 2, 1, 3, teams=1, rounds_input=True),
    ),
    "tf32-ragged": (layer((2, 60, 9, 7), (64, 60, 1, 1), "float32", precision="tf32"), wgmma(64, 64, 1, 1, teams=2)),
    "float32": (layer((2, 32, 9, 8), (72, 32, 3, 3), "float32", residual=True), wgmma(128, 64, 2, 1, 3, teams=1)),
    "float32-groups": (layer((2, 64, 6, 7), (80, 32, 3, 3), "float32", groups=2), wgmma(64, 32, 1, 1, teams=2)),
    "float32-NCHW": (
        layer((3, 96, 6, 7), (128, 96, 1, 1), "float32", FIRST, scale=True),
        wgmma(128, 64, 2, 1, 2, teams=1),
    ),
    "48-channels-in-tf32": (
        layer((2, 48, 9, 7), (72, 48, 3, 3), "float32", precision="tf32"),
        wgmma(128, 64, 1, 1, 3, teams=2),
    ),
    "40-channels-in-float32": (layer((2, 40, 9, 7), (64, 40, 3, 3), "float32"), wgmma(128, 64, 2, 1, 3, teams=1)),
    "48-channels-in-float32": (
        layer((2, 48, 9, 7), (32, 48, 3, 3), "float32", activation="relu"),
        wgmma(128, 32, 1, 1, 3, teams=1),
    ),
    "products": (
        layer((1, 288, 1, 70), (120, 96, 1, 1), layouts=Layouts("NCHW96c", "KRSC", "NCHW40c"), groups=3),
        wgmma(64, 40, 1, 1, teams=1),
    ),
    "products-in-float32": (
        layer((1, 96, 1, 150), (144, 32, 1, 1), "float32", Layouts("NCHW32c", "KRSC", "NCHW48c"), groups=3),
        wgmma(64, 48, 1, 1, teams=2),
    ),
    "two-chunks": (layer((2, 112, 9, 9), (64, 112, 1, 1)), wgmma(128, 64, 1, 1, teams=2)),
    "one-chunk-of-integers": (layer((2, 128, 9, 9), (64, 128, 1, 1), "int8"), wgmma(128, 64, 1, 1, teams=2)),
    "passes": (layer((1, 64, 10, 13), (2048, 64, 1, 1), shift=True), wgmma(64, 64, 1, 1, 3, teams=2)),
    "passes-from-registers": (
        layer((1, 64, 10, 13), (1500, 64, 1, 1), "float32", precision="tf32"),
        wgmma(64, 48, 1, 1, 4, teams=2),
    ),
    "gathered": (
        layer((2, 64, 9, 7), (80, 64, 3, 3), "float32", precision="tf32", scale=True, shift=True, activation="relu"),
        wgmma(128, 64, 2, 1, 4, teams=1),
    ),
    "gathered-groups": (
        layer((2, 64, 6, 7), (96, 32, 3, 3), "float32", groups=2, shift=True),
        wgmma(64, 32, 1, 1, teams=2),
    ),
    "gathered-and-split-k": (
        layer((1, 128, 9, 7), (144, 128, 3, 3), "float32", precision="tf32", shift=True),
        wgmma(64, 96, 1, 1, 4, teams=1, split_k=2),
    ),
    "split-k": (layer((2, 256, 9, 7), (64, 256, 1, 1), shift=True), wgmma(64, 64, 1, 1, 3, teams=2, split_k=2)),
    "split-k-residual": (
        layer((1, 128, 9, 7), (72, 128, 3, 3), "bfloat16", residual=True, activation="relu"),
        wgmma(128, 72, 2, 1, 3, teams=1, split_k=3),
    ),
    "split-k-ragged": (layer((2, 96, 9, 7), (64, 96, 3, 3)), wgmma(64, 64, 1, 1, 3, teams=2, split_k=3)),
    "split-k-NCHW": (layer((2, 64, 7, 9), (64, 64, 3, 3), layouts=FIRST), wgmma(128, 64, 1, 1, teams=2, split_k=3)),
    "split-k-groups": (
        layer((1, 256, 1, 70), (80, 128, 1, 1), layouts=Layouts("NCHW128c", "KRSC", "NCHW40c"), groups=2),
        wgmma(64, 40, 1, 1, teams=2, split_k=2),
    ),
    "split-k-in-tf32": (
        layer((2, 64, 9, 7), (72, 64, 3, 3), "float32", precision="tf32", shift=True),
        wgmma(128, 64, 2, 1, 4, teams=1, split_k=6),
    ),
    "split-k-in-float32": (
        layer((2, 64, 9, 8), (72, 64, 3, 3), "float32", residual=True),
        wgmma(64, 64, 1, 1, 3, teams=2, split_k=2),
    ),
    "split-k-of-integers": (
        layer((2, 256, 9, 7), (64, 256, 3, 3), "uint8", x_zero_point=9, out_dtype="uint8", scale=True),
        wgmma(64, 64, 1, 1, teams=2, split_k=2),
    ),
    "split-k-channel-rows": (
        layer((2, 128, 9, 7), (128, 128, 3, 3), shift=True, activation="relu"),
        wgmma(72, 128, 1, 2, 4, teams=1, channel_rows=True, split_k=2),
    ),
    "channel-rows": (
        layer((2, 64, 9, 7), (128, 64, 3, 3), shift=True, activation="relu"),
        wgmma(72, 128, 1, 2, 4, teams=1, channel_rows=True),
    ),
    "channel-rows-of-96-channels": (
        layer((3, 96, 9, 7), (136, 96, 3, 3), "bfloat16", residual=True),
        wgmma(56, 128, 1, 1, 3, teams=2, channel_rows=True),
    ),
    "channel-rows-of-three-groups-of-warps": (
        layer((3, 256, 9, 9), (192, 128, 1, 1), groups=2),
        wgmma(104, 192, 1, 3, 3, teams=1, channel_rows=True),
    ),
    "channel-rows-of-integers": (
        layer((2, 96, 9, 7), (64, 96, 3, 3), "int8"),
        wgmma(48, 64, 1, 1, teams=2, channel_rows=True),
    ),
    "channel-rows-in-tf32": (
        layer((2, 64, 9, 7), (72, 64, 3, 3), "float32", precision="tf32", shift=True),
        wgmma(40, 64, 1, 1, 4, teams=2, rounds_input=True, channel_rows=True),
    ),
}

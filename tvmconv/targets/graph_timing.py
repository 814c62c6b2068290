"""Timing of a kernel on a GPU, without the time that launching it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmconv.errors import MissingPackageError

if TYPE_CHECKING:
    from tvm.runtime import Device


def cuda_driver() -> Any:
    """Return the CUDA driver's functions; raise `MissingPackageError` where their package is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise MissingPackageError("cuda-bindings", "cuda", "timing kernels on a GPU") from None
    return driver


def graph_costs(
    call: Callable[[], object], device: Device, number: int, repeat: int, min_repeat_ms: float
) -> list[float]:
    """Return the seconds of one call, averaged over each of `repeat` measurements; the call has run once before.

    `number` calls are captured in a CUDA graph. Each measurement replays it, between two events, for `min_repeat_ms`
    at least: a small kernel is over before Python, or TVM, could launch the next one.
    """
    import tvm_ffi

    driver = cuda_driver()

    def done(answer: tuple[Any, ...]) -> Any:
        if answer[0] != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA: {driver.cuGetErrorString(answer[0])[1].decode()}")
        return answer[1] if len(answer) > 1 else None

    device.sync()
    stream = done(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    start, end = (done(driver.cuEventCreate(0)) for _ in range(2))
    with tvm_ffi.use_raw_stream(device, int(stream)):
        done(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        for _ in range(number):
            call()
        captured = done(driver.cuStreamEndCapture(stream))
    graph = done(driver.cuGraphInstantiate(captured, 0))
    done(driver.cuGraphDestroy(captured))

    def seconds(replays: int) -> float:
        done(driver.cuEventRecord(start, stream))
        for _ in range(replays):
            done(driver.cuGraphLaunch(graph, stream))
        done(driver.cuEventRecord(end, stream))
        done(driver.cuEventSynchronize(end))
        return float(done(driver.cuEventElapsedTime(start, end))) / 1000

    seconds(1)
    replays = max(1, -(-int(1e6 * min_repeat_ms) // max(1, int(1e9 * seconds(1)))))
    costs = [seconds(replays) / (replays * number) for _ in range(repeat)]
    done(driver.cuGraphExecDestroy(graph))
    for event in (start, end):
        done(driver.cuEventDestroy(event))
    done(driver.cuStreamDestroy(stream))
    return costs

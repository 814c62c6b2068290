"""The command `tvmconv rpc`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tvmconv.targets.cuda import WITHOUT_CUDA

from .console import note, print_json
from .options import ADDRESS, JSON, command, option

if TYPE_CHECKING:
    from tvmconv.autotvm.rpc import Service

PORT = click.IntRange(1, 65535)

HOST = option(
    "The address to listen on; 0.0.0.0 for other machines, all of which must be trusted.", default="127.0.0.1"
)


@command()
def tracker(
    host: str = HOST, port: int = option("The port to listen on.", type=PORT, default=9190), as_json: bool = JSON
) -> None:
    """List the servers of `tvmconv rpc server`, and lend them to `tvmconv tune`."""
    from tvmconv.autotvm.rpc import tracker

    serve({"tracker": tracker(host, port)}, host, as_json)


@command()
def server(
    tracker: tuple[str, int] = option("The address of `tvmconv rpc tracker`.", type=ADDRESS, metavar="HOST:PORT"),
    key: str = option("A name for devices of this kind, such as h100, by which `tvmconv tune` asks for them."),
    host: str = HOST,
    port: int = option("The first port to try.", type=PORT, default=9091),
    port_end: int | None = option("The port before which to stop trying.  [default: 100 ports are tried]", type=PORT),
    devices: tuple[int, ...] = option(
        "The number of a GPU; given several times, each GPU has a server.  [default: the first]",
        "--device",
        type=click.IntRange(min=0),
        multiple=True,
    ),
    as_json: bool = JSON,
) -> None:
    """Check and time kernels on this machine for whoever asks the tracker.

    A server that dies, as by a kernel's fault, is started again.
    """
    os.environ.update(WITHOUT_CUDA)
    from tvmconv.autotvm.rpc import server
    from tvmconv.autotvm.rpc.runner import count_servers

    count_servers(key, *tracker)  # a tracker that is not there is better found now
    end = port_end or port + 100
    services = {
        "server" if device is None else f"server of device {device}": server(tracker, key, host, port, end, device)
        for device in devices or (None,)
    }
    serve(services, host, as_json)


@click.group(commands=[tracker, server])
def rpc() -> None:
    """Tune on several devices, of this machine or others: a tracker, and a server for each device.

    Both run until Ctrl-C or SIGTERM. `tvmconv tune --rpc-tracker HOST:PORT --rpc-key KEY` makes use of them.
    """


def serve(services: dict[str, Service], host: str, as_json: bool) -> None:
    """Run services until interrupted."""
    from tvmconv.autotvm.rpc import Supervisor

    with Supervisor(services) as supervisor:
        if as_json:
            print_json([{"name": name, "host": host, "port": port} for name, port in supervisor.ports.items()])
        else:
            for name, port in supervisor.ports.items():
                click.echo(f"{name}: {host}:{port}")
        supervisor.watch(lambda name: note(f"{name} died, and is started again"))

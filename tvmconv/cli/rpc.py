"""The command `tvmconv rpc`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from tvmconv.targets.cuda import WITHOUT_CUDA

from .console import note, print_json
from .options import address, json_option

if TYPE_CHECKING:
    from tvmconv.autotvm.rpc import Service

PORT = click.IntRange(1, 65535)

host_option = click.option(
    "--host",
    default="127.0.0.1",
    help="The address to listen on; 0.0.0.0 for other machines, all of which must be trusted.",
)


@click.group()
def rpc() -> None:
    """Tune on several devices, of this machine or others: a tracker, and a server for each device.

    Both run until Ctrl-C or SIGTERM. `tvmconv tune --rpc-tracker HOST:PORT --rpc-key KEY` makes use of them.
    """


@rpc.command()
@host_option
@click.option("--port", type=PORT, default=9190)
@json_option
def tracker(host: str, port: int, as_json: bool) -> None:
    """Keep the list of servers, and hand them out."""
    from tvmconv.autotvm.rpc import tracker

    serve({"tracker": tracker(host, port)}, host, as_json)


@rpc.command()
@click.option(
    "--tracker", required=True, callback=address, metavar="HOST:PORT", help="The address of `tvmconv rpc tracker`."
)
@click.option("--key", required=True, help="The name of devices of this kind, such as h100.")
@host_option
@click.option("--port", type=PORT, default=9091, help="The first port to try.")
@click.option("--port-end", type=PORT, help="The first port not to try.  [default: 100 after the first to try]")
@click.option(
    "--device",
    "devices",
    type=click.IntRange(min=0),
    multiple=True,
    help="The number of a GPU; give it several times for a server each.  [default: the first]",
)
@json_option
def server(
    tracker: tuple[str, int],
    key: str,
    host: str,
    port: int,
    port_end: int | None,
    devices: tuple[int, ...],
    as_json: bool,
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

"""The command `ttdg serve`."""

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from ttdg.cli.options import DeviceOption, output_folder
from ttdg.errors import UserError

if TYPE_CHECKING:
    import socket

    from ttdg.page import PageSettings


def serve_command(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Checkpoint folder, or [bold]demo[/bold]; may be repeated. Default: demo.",
            show_default=False,
        ),
    ] = None,
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--images",
            "-i",
            help="Users may name image folders below this folder; may be repeated. Default: the "
            "working folder, and none if --host is not loopback.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--run", "-r", help="Folder of a benchmark run; may be repeated.", show_default=False),
    ] = None,
    work: Annotated[
        Path, typer.Option(help="Folder for uploads, masks and decisions.", callback=output_folder)
    ] = Path("ttdg-sites"),
    host: Annotated[
        str, typer.Option(help="Address to listen on. Others than loopback need the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 chooses a free port.")] = 8020,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name", help="A further host name of this server; may be repeated.", show_default=False
        ),
    ] = None,
    max_megabytes: Annotated[int, typer.Option(min=1, help="Refuse larger uploaded files.")] = 200,
    device: DeviceOption = "auto",
) -> None:
    """Open a page on which a new site is learned and reviewed, the matching is shown, and runs are read.

    The page works offline and answers on this machine only. With another --host, every user needs the token that the
    command prints, or that the variable TTDG_TOKEN holds. Connections are not encrypted: use a proxy with TLS.

    Sites that were interrupted are continued when the command is given again.

    Example: [bold]ttdg serve --images demo-out/data[/bold]

    A model and the tables of a run: [bold]ttdg serve -m models/no-etis -r runs/smoke[/bold]
    """
    from ttdg.bench.run_file import read_run
    from ttdg.newsite.lock import lock_output
    from ttdg.page import PageSettings
    from ttdg.page.settings import LOOPBACK

    token = os.environ.get("TTDG_TOKEN", "") or ("" if host in LOOPBACK else secrets.token_urlsafe(24))
    settings = PageSettings(
        work=work, models=tuple(model or ["demo"]), runs=tuple(runs or ()), host=host, names=tuple(names or ()),
        folders=tuple(folders if folders is not None else [Path.cwd()] if host in LOOPBACK else []),
        token=token, device=device, most_bytes=1_000_000 * max_megabytes,
    )  # fmt: skip
    for folder in settings.folders:
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}; give an existing one to --images")
    for run in settings.runs:
        read_run(run)
    with lock_output(work, "end it first, or choose another --work"):
        _serve(settings, _bind(host, port))


def _bind(host: str, port: int) -> "socket.socket":
    """Return a socket that owns a port, and does not listen yet."""
    import socket

    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port} ({error.strerror}); choose another --port"
        ) from None
    return bound


def _serve(settings: "PageSettings", listening: "socket.socket") -> None:
    """Answer visitors until Ctrl-C, and print the address before the first."""
    import uvicorn

    from ttdg.page import create_app

    config = uvicorn.Config(
        create_app(settings), log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    config.load()  # now, so that the first visitor does not wait for it
    listening.listen()  # from here on, connections wait for the server
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    query = f"?token={quote(settings.token, safe='')}" if settings.token else ""
    typer.echo(
        f"http://{shown}:{listening.getsockname()[1]}/{query}\n"
        "Ctrl-C ends the page; interrupted sites continue when it is opened again"
    )
    uvicorn.Server(config).run(sockets=[listening])

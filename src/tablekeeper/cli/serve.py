"""`tablekeeper serve`: run the Table Management Service."""

from __future__ import annotations

import enum
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tablekeeper.cli.arguments import Debug, StorageOption, examples, option_pairs
from tablekeeper.cli.failures import reported
from tablekeeper.errors import InvalidRequestError
from tablekeeper.runtime import SYSTEM_RUNTIME

__all__ = ["serve_commands"]

serve_commands = typer.Typer()
_WORK_DIR = Path("~/.tablekeeper")


class LogFormat(enum.Enum):
    """How the service writes its log."""

    TEXT = "text"
    JSON = "json"


@serve_commands.command(
    epilog=examples(
        "tablekeeper serve --allow /lake",
        "tablekeeper serve --allow s3://lake --db postgresql://keeper@db/tablekeeper --grpc-port 9092",
        "tablekeeper serve --allow /lake --alarm slack=https://hooks.example.org/x --alarm email=ops@example.org "
        "--smtp localhost:25",
        "tablekeeper serve --allow /lake --engine spark-submit --master spark://master:7077 --slots 8",
    )
)
@reported
def serve(
    *,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A folder whose tables the service may maintain. Can be repeated."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at. Others than the own machine's need tokens.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of REST and the pages.")] = 9091,
    grpc_port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port of gRPC, if wanted.")] = None,
    db: Annotated[
        str, typer.Option(metavar="URL", help="postgresql://… or mysql://…; a SQLite file if left out.")
    ] = "",
    engine: Annotated[str, typer.Option(help="Where work runs: local, arrow, spark-submit, …")] = "local",
    master: Annotated[str, typer.Option(help="Spark's master for spark-submit.")] = "",
    engine_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of the engine. Can be repeated.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=0, help="How many operations run at once here; 2 if left out.")
    ] = None,
    settings_file: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="Limits of queues and owners, and times, in TOML."),
    ] = None,
    work_dir: Annotated[
        Path, typer.Option(help="Where the SQLite file and the output of attempts are kept.")
    ] = _WORK_DIR,
    alarm: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=TARGET", help="webhook=URL, slack=URL or email=ADDRESS. Can be repeated."),
    ] = None,
    smtp: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The server that takes mail, for --alarm email=ADDRESS.")
    ] = "",
    alarm_file: Annotated[
        Path | None,
        typer.Option(help="Alarm channels in TOML, for targets that nobody else on the machine should read."),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people, or one JSON object a line.")] = (
        LogFormat.TEXT
    ),
    tls_certificate: Annotated[Path | None, typer.Option(help="A PEM file.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="A PEM file.")] = None,
    public_url: Annotated[
        str,
        typer.Option(metavar="URL", help="Where people find the pages, if not at this address: alarms link there."),
    ] = "",
    storage_option: StorageOption = None,
    debug: Debug = False,
) -> None:
    """Run the Table Management Service: it keeps the tables of a whole lake healthy."""
    try:
        from tablekeeper.server.observe.channels import load_channels, parse_channels  # noqa: PLC0415
        from tablekeeper.server.observe.logs import start_logging  # noqa: PLC0415
        from tablekeeper.server.serve import serve as run  # noqa: PLC0415 (an extra, and slow to import)
        from tablekeeper.server.settings import Limits, ServerSettings, Timing  # noqa: PLC0415
        from tablekeeper.server.settings_file import load_settings_file  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"the service needs {error.name}. Install it with: pip install 'tablekeeper[service]'"
        ) from error
    channels = parse_channels(alarm or (), smtp=smtp)
    limits, timing = load_settings_file(settings_file) if settings_file is not None else (Limits(), Timing())
    settings = ServerSettings(
        work_dir=work_dir.expanduser(),
        # Not on the command line, where everybody on the machine can read the password.
        database_url=db or os.environ.get("TABLEKEEPER_DATABASE", ""),
        host=host,
        port=port,
        grpc_port=grpc_port,
        engine=engine,
        master=master,
        engine_options=option_pairs(engine_option),
        allow=tuple(allow or ()),
        storage_options=option_pairs(storage_option),
        limits=replace(limits, slots=slots) if slots is not None else limits,
        timing=timing,
        channels=channels + (load_channels(alarm_file) if alarm_file is not None else ()),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        public_url=public_url,
    )
    start_logging(as_json=log_format is LogFormat.JSON, is_verbose=debug)
    if not allow:
        typer.echo("no --allow: the service starts, but no table can be registered by its path", err=True)
    run(settings, runtime=SYSTEM_RUNTIME)

"""Storage options as users write them, and the client that they describe.

Options are named as in the client library and in other tools for these stores: `aws_access_key_id`, `region`,
`endpoint`, `allow_http`, `account_name`, …; case does not matter. What is not given is taken from the store's usual
environment variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`,
`AZURE_STORAGE_ACCOUNT_NAME`, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore, S3Store

from tablekeeper.errors import InvalidRequestError

__all__ = ["Clients", "knows_option", "open_clients"]

_DEFAULT_TIMEOUT = "60s"
_CERTIFICATE = "root_certificate"
_NO_RETRIES = {"max_retries": 0}
_FACTORIES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore, "abfss": AzureStore}
_STREAM_RETRIES = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}


@dataclass(frozen=True, slots=True)
class Clients:
    """Two clients of one place: `single` fails at once, since retries of single requests are decided by the store;
    `streaming` retries by itself, since the parts of an upload are out of anyone else's reach."""

    single: Any
    streaming: Any


def open_clients(uri: str, options: Mapping[str, str]) -> Clients:
    """The clients for a canonical URI."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    # Settings of the connection go in with the rest: given apart, they would hide those of the environment.
    folded = {"timeout": _DEFAULT_TIMEOUT, **{name.lower(): value for name, value in options.items()}}
    certificate = {_CERTIFICATE: folded.pop(_CERTIFICATE)} if _CERTIFICATE in folded else None
    factory: Any = _FACTORIES[scheme]
    if factory is AzureStore:
        bucket, folded = _azure_place(uri, bucket, folded)
    try:
        single, streaming = (
            factory(bucket, prefix=prefix or None, config=folded, client_options=certificate, retry_config=retries)
            for retries in (_NO_RETRIES, _STREAM_RETRIES)
        )
    except (obs.BaseError, ValueError, TypeError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(". ")
        raise InvalidRequestError(f"{uri}: {reason}. Check the names and values of the storage options.") from error
    return Clients(single=single, streaming=streaming)


def knows_option(scheme: str, name: str) -> bool:
    """Whether stores of this scheme have an option of this name, whatever its value."""
    if name.lower() == _CERTIFICATE:
        return True
    try:
        _FACTORIES[scheme]("bucket", config={name.lower(): ""})
    except obs.UnknownConfigurationKeyError:
        return False
    except (obs.BaseError, ValueError, TypeError):
        # The client reads the names first: this is about the value, or about what is missing beside it.
        return True
    return True


def _azure_place(uri: str, authority: str, folded: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The container, and the options with the account that `container@account.dfs.core.windows.net` names."""
    container, at, host = authority.partition("@")
    if not at:
        return authority, folded
    account, dot, _ = host.partition(".")
    if not container or not account or not dot:
        raise InvalidRequestError(f"{uri!r}: write it as abfss://container@account.dfs.core.windows.net/path.")
    given = {name for name in folded if name.removeprefix("azure_").removeprefix("storage_") == "account_name"}
    return container, folded if given else {**folded, "account_name": account}

"""Patches the client of the Table Management Service that Java Hudi ships, in a running Spark session.

In every release of Hudi from 0.13 to 1.2.0 that client throws before it sends anything: the setting
`hoodie.table.service.manager.deploy.extra.params` has no default, and the client evaluates the default even where the
setting is given. The second fault concerns the metadata table, whose writer is told that services are managed but not
where: it asks `http://localhost:9091`, wherever the service listens.

Both are defaults of constants in the JVM. `enable_service_manager` sets them by reflection, for this driver process and
as long as it lives; no file, table or setting is changed. PySpark is not imported: the session is the caller's.
"""

from __future__ import annotations

from typing import Any

from tablekeeper.client import ServiceClient
from tablekeeper.config.hosting_settings import hosted_writer_options
from tablekeeper.errors import InvalidRequestError, UnsupportedFeatureError

__all__ = ["enable_service_manager"]

_EXTRA_PARAMS = "TABLE_SERVICE_MANAGER_DEPLOY_EXTRA_PARAMS"
_ADDRESSES = "TABLE_SERVICE_MANAGER_URIS"


def enable_service_manager(spark: Any, address: str = "http://localhost:9091") -> dict[str, str]:
    """Make Java Hudi's client of the service at `address` work in this session; calling it again changes nothing.

    Returns the options for Java's writers: which services are left to the service, where it listens, and how long a
    writer waits for it. A Java writer asks while it holds the table lock, and what goes wrong then fails its write, so
    that the time is kept short.
    """
    ServiceClient([address])
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise InvalidRequestError(
            "a classic Spark session is needed, whose driver runs in this process: Spark Connect's has no JVM to patch"
        )
    try:
        config = jvm.org.apache.hudi.common.config.HoodieTableServiceManagerConfig
        _set_default(getattr(config, _EXTRA_PARAMS), "")
        _set_default(getattr(config, _ADDRESSES), address)
    except TypeError as error:
        # What py4j makes of a class that is not there: a package that cannot be called.
        raise UnsupportedFeatureError(
            "there is no Java Hudi in this session, or none that knows the service: start it with the bundle of "
            "release 0.13 or later in spark.jars"
        ) from error
    return hosted_writer_options(address)


def _set_default(option: Any, value: str) -> None:
    """`option` is a constant of the JVM; it answers `defaultValue()` with this value from now on."""
    field = option.getClass().getDeclaredField("defaultValue")
    field.setAccessible(True)
    field.set(option, value)

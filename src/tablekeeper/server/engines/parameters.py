"""What requests ask of engines, checked: memory, parallelism, and settings of Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tablekeeper.errors import InvalidRequestError
from tablekeeper.server.model import RunParameters

__all__ = [
    "Resource",
    "check_settings",
    "flink_settings",
    "hudi_settings",
    "parse_resource",
    "spark_settings",
]

_MEMORY = re.compile(r"[1-9]\d{0,5}[kmgt]", re.IGNORECASE)
_SPARK_KEY = re.compile(r"spark(\.[A-Za-z0-9_\-]+){1,10}")
_PLAIN = re.compile(r"[^\x00-\x1f\x7f]{0,1000}")
# Settings that would run code of the requester's choice, or move the job to where the operator did not send it.
_REFUSED = re.compile(
    r"spark\.(master|submit\..*|app\..*|jars.*|files|archives|plugins|extraListeners|pyspark\..*|python\..*"
    r"|sql\.extensions|sql\.catalog\..*|.*[eE]xtraJavaOptions|.*[dD]efaultJavaOptions|.*[eE]xtraClassPath"
    r"|.*[eE]xtraLibraryPath|.*executorEnv\..*|yarn\.appMasterEnv\..*|kubernetes\..*|driver\..*[pP]lugin.*|hadoop\..*)"
)
# Of Flink and of Hudi there are more settings that would, so that those are named which do not.
_FLINK = re.compile(
    r"(taskmanager\.memory|jobmanager\.memory|execution\.batch|python\.fn-execution|restart-strategy|heartbeat)"
    r"(\.[a-z0-9\-]+){1,8}|taskmanager\.numberOfTaskSlots|parallelism\.default|restart-strategy"
)
_HUDI = re.compile(
    r"hoodie\.(compact|compaction|log\.compaction|clustering|clean|cleaner|keep|archive|parquet|logfile|memory)"
    r"(\.[A-Za-z0-9_\-]+){1,8}"
)
_HUDI_REFUSED = re.compile(
    r".*(\.class|\.strategy|\.payload|provider|updates|failed|inline|async|automatic|expiration).*"
)
_HUDI_NUMBERS = re.compile(r"hoodie\.clustering\.plan\.strategy\.[a-z.]*(bytes|limit|columns|groups?|partitions)")


@dataclass(frozen=True, slots=True)
class Resource:
    """Memory as Spark spells it; empty means the engine's default."""

    driver_memory: str = ""
    executor_memory: str = ""


def parse_resource(text: str) -> Resource:
    """From `4g:4g` of RFC-43, or `spark:4g,4g` of the shipped client: driver, then executor."""
    if not text:
        return Resource()
    plain = text.removeprefix("spark:").removeprefix("flink:")
    parts = plain.replace(",", ":").split(":")
    if len(parts) != 2 or not all(_MEMORY.fullmatch(part) for part in parts):
        raise InvalidRequestError(f"resource {text[:60]!r}: write driver and executor memory as 4g:4g or spark:4g,4g")
    return Resource(*(part.lower() for part in parts))


def spark_settings(parameters: RunParameters) -> Mapping[str, str]:
    """Settings of Spark that a request may make; those that are no business of Spark are left to the table."""
    settings: dict[str, str] = {}
    for key, value in parameters.extra_params.items():
        if not key.startswith("spark"):
            continue
        if not _SPARK_KEY.fullmatch(key) or not _PLAIN.fullmatch(value):
            raise InvalidRequestError(f"extra_params: {key[:60]!r} is no setting of Spark")
        if _REFUSED.fullmatch(key):
            raise InvalidRequestError(f"extra_params: {key} is for the operator of the service to set")
        settings[key] = value
    if parameters.parallelism is not None:
        settings["spark.default.parallelism"] = str(parameters.parallelism)
        settings["spark.sql.shuffle.partitions"] = str(parameters.parallelism)
    return settings


def flink_settings(parameters: RunParameters) -> Mapping[str, str]:
    """Settings of Flink that a request may make, which begin with `flink.` there."""
    settings: dict[str, str] = {}
    for key, value in parameters.extra_params.items():
        if key.startswith("flink."):
            name = key.removeprefix("flink.")
            if not _FLINK.fullmatch(name) or not _PLAIN.fullmatch(value):
                raise InvalidRequestError(f"extra_params: {key[:60]} is for the operator of the service to set")
            settings[name] = value
    return settings


def hudi_settings(parameters: RunParameters) -> Mapping[str, str]:
    """Settings of Hudi that a request may make: how much a service does at a time, and not who else may write,
    which classes are loaded or what happens to the metadata table.
    """
    settings: dict[str, str] = {}
    for key, value in parameters.extra_params.items():
        if not key.startswith("hoodie"):
            continue
        is_number = _HUDI_NUMBERS.fullmatch(key) is not None
        is_tuning = is_number or (_HUDI.fullmatch(key) is not None and not _HUDI_REFUSED.fullmatch(key))
        if not is_tuning or not _PLAIN.fullmatch(value):
            raise InvalidRequestError(
                f"extra_params: {key[:60]} is for the operator of the service to set, in the policy of the table"
            )
        settings[key] = value
    return settings


def check_settings(parameters: RunParameters) -> None:
    """`InvalidRequestError` if a setting is for the operator alone, whichever engine it will be."""
    spark_settings(parameters)
    flink_settings(parameters)
    hudi_settings(parameters)

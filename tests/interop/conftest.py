"""The shared Spark session, with Java Hudi on it. A missing bundle fails the tests, it does not skip them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.java_hudi import hudi_settings

__all__ = ["spark_settings"]


@pytest.fixture(scope="session")
def spark_settings() -> Mapping[str, str]:
    """Java Hudi, hudi-rs and tablekeeper share this session and this process."""
    return hudi_settings()

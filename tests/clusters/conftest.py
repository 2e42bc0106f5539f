"""Real clusters for all tests of this folder: a Spark master with two workers. `make clusters` runs them.

What a test freezes or kills it has to put right, or to start a cluster of its own with `spark_cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.spark_cluster import SparkCluster, spark_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One master and two workers of one core, under 127.0.0.1 and localhost."""
    with spark_cluster(tmp_path_factory.mktemp("spark-cluster")) as made:
        yield made

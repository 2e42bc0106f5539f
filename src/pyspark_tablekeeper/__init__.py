"""Where PySpark 4 finds the format `tablekeeper` by itself: it imports installed modules named `pyspark_*`."""

from tablekeeper.spark_datasource import TablekeeperDataSource as DefaultSource

__all__ = ["DefaultSource"]

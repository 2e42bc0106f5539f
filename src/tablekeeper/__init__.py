"""Apache Hudi tables from Python, on Spark."""

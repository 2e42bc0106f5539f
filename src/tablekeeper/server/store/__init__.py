"""The service's database: the `JobStore` protocol and its one SQL implementation."""

"""What the service answers to: REST as in RFC-43, the dialect of the Java client, Hudi's commit callback, and gRPC."""

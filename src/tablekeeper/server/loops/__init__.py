"""What the service does on its own: small classes with `run_once()` that are given store, engines and clock."""

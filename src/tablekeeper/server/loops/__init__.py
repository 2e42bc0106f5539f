"""What the service does by itself: each loop a small class with `run_once()`, handed its store, engines and clock."""

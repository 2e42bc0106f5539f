"""What the service tells about itself: metrics, logs and the delivery of alarms."""

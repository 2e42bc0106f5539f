"""Programs that show how tablekeeper is used, and check what they show."""

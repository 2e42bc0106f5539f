"""What the service decides, as pure functions: what is due, what runs next, what a failure means, which alarm fires."""

"""The pages of the service: rendered on the server, no logic of their own."""

"""What the HTTP API offers, one module per thing it is about."""

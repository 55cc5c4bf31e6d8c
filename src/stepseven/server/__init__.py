"""The HTTP API, and the pages: everything a program or a person elsewhere can ask. It changes state by ``transitions/`` alone."""

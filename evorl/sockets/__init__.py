"""Common base of all servers: addresses, tokens, TLS, connection limits and shutdown."""

"""The base of all servers: addresses, tokens, TLS, limits of connections, shutdown."""

"""HTTP connections of sinks: URLs, TLS, addresses, and a keep-alive client."""

"""Operation: status and metrics of every component, the HTTP server that exposes them, and the process supervisor."""

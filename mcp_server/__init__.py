"""MCP over HTTP: one `bash` tool on top of a sandbox backend."""

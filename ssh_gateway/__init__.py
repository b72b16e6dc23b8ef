"""The SSH front door: public keys in, MCP over stdio out, and nothing else that SSH can do."""

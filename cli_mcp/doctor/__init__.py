"""`cli-mcp doctor`: what is wrong with an installation in a cluster, and what to do about it."""

"""The credential proxy: the only way out of a sandbox."""

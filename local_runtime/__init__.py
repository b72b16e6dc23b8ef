"""The same instance file on one machine: bubblewrap sandboxes instead of pods."""

"""The command line as a client of a running server: one command (`call`) or a prompt (`shell`)."""

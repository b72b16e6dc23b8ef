"""The typed tools on the sandbox's side: files below one directory, and processes with logs."""

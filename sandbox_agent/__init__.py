"""The shell of one sandbox: runs commands, captures output, keeps state. Standard library only."""

"""The exit statuses of every subcommand; `cli-mcp --help` shows them."""

OK = 0
FAILED = 1
"""It ran, and something is wrong: a finding of `validate` or `doctor`, a server that cannot start."""
USAGE = 2
"""Wrong arguments, or a file that they name cannot be read."""
TIMED_OUT = 124
"""As with timeout(1): a command of `call` or `shell` ran out of time."""
NO_RESULT = 125
"""As with docker: nothing ran, what became of it is unknown, or its output did not arrive whole."""
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE

MEANINGS = {
    str(OK): "all is well",
    str(FAILED): "something is wrong: a finding, a server that cannot start",
    str(USAGE): "wrong arguments, or a file that cannot be read",
    "124, 125": "call, shell: timed out; no result, or not all of it. Both with a line on stderr that begins",
    "": "with `cli-mcp:`, which also says so when a 124 or 125 is the command's own",
    "130, 141": "Ctrl-C; the reader of the output went away",
    "other": "call, shell: the command's own",
}

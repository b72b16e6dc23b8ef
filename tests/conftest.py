"""What every test relies on."""

import signal


def pytest_configure() -> None:
    """What a script starts with `&` ignores SIGINT, and so does all that it starts; but tests send it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

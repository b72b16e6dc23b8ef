"""Shows on stderr how a running command goes."""

from typing import TextIO

_ERASE_LINE = "\r\x1b[K"  # ECMA-48: EL
_WIDTH = 79


class ProgressLine:
    """One line that is rewritten on a terminal; elsewhere a new line, more and more rarely."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._next_seconds = 0.0
        self._shown = False

    def show(self, seconds: float, message: str) -> None:
        if seconds < self._next_seconds:
            return
        printable = "".join(character if character.isprintable() else " " for character in message)
        line = f"[{seconds:.0f} s] {printable}"
        if self._terminal:
            self._stream.write(_ERASE_LINE + line[:_WIDTH])
            self._shown = True
        else:
            self._stream.write(line + "\n")
            self._next_seconds = 2 * seconds
        self._stream.flush()

    def clear(self) -> None:
        """Leave the line to the command's own output."""
        if self._shown:
            self._stream.write(_ERASE_LINE)
            self._stream.flush()
        self._shown = False
        self._next_seconds = 0.0

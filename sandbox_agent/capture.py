"""What a result keeps of a stream: its head and its tail, in bounded memory, however much flows through."""

# How long a line may be that is left out rather than cut in two; at most half of what is kept at each end.
_WHOLE_LINE_BYTES = 4096


class Capture:
    """The whole stream while it has at most `limit_bytes`; else a half from each end."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = False
        self.total_bytes = 0

    @property
    def overflowed(self) -> bool:
        return self.total_bytes > self._limit

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes. Returns those that a copy of the whole stream lacks: nothing while all of it
        is in memory, all of it at the moment when it no longer is, `data` ever after."""
        self.total_bytes += len(data)
        if not self.overflowed:
            self._head += data
            return b""
        if not self._cut:
            self._cut = True
            data = bytes(self._head) + data
            self._head[:] = data[: self._half]
        # And a byte before the tail, which says whether a line begins with it.
        self._tail += data[max(0, len(data) - self._half - 1) :]
        # Trimmed once it has doubled, so that a trickle of small writes does not move the tail each time.
        if len(self._tail) > 2 * self._half + 1:
            del self._tail[: -self._half - 1]
        return data

    def head_and_tail(self) -> tuple[bytes, bytes]:
        """Tail is empty unless something was left out. Neither is cut inside of a line, unless it is a long
        one, nor of a UTF-8 character."""
        if not self.overflowed:
            return bytes(self._head), b""
        line_limit = min(_WHOLE_LINE_BYTES, self._half // 2)
        return _end_of_head(bytes(self._head), line_limit), _start_of_tail(
            bytes(self._tail[-self._half - 1 :]), line_limit
        )

    def last_line(self, limit_bytes: int = 200) -> str:
        """The last line with something in it, as far as `limit_bytes` from the end show it."""
        end = bytes((self._tail or self._head)[-limit_bytes:])
        lines = end.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _end_of_head(head: bytes, line_limit: int) -> bytes:
    end = head.rfind(b"\n", max(0, len(head) - line_limit - 1)) + 1
    return head[:end] if end else _without_partial_end(head)


def _start_of_tail(window: bytes, line_limit: int) -> bytes:
    """`window` has the byte before the tail, too."""
    start = window.find(b"\n", 0, line_limit + 1) + 1
    return window[start:] if start else _without_partial_start(window[1:])


def _without_partial_end(data: bytes) -> bytes:
    """Drop the start of a character that has not all of its bytes; RFC 3629 section 3 has the lead bytes."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if needed > back else data
    return data


def _without_partial_start(data: bytes) -> bytes:
    """Drop up to three bytes that continue a character."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]

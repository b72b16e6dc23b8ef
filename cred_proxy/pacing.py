"""A protocol of aiohttp's that works in turns: what its client has no time for is held, and reading stops."""

from functools import partial

from aiohttp.base_protocol import BaseProtocol

from cred_proxy.fairness import Turns


class Paced(BaseProtocol):
    """Mixed into a protocol that does in `_work_on` what others do in `data_received`."""

    _turns: Turns
    _client: str
    _held: bytes | None = None
    """What waits for its turn."""

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._held += data
            return
        if self._turns.has_time_for(self._client):
            self._turns.run(self._client, partial(self._work_on, data))
            return
        self._held = data
        self._pause_transport_reading()
        self._turns.run(self._client, self._work_on_held)

    def _work_on(self, data: bytes) -> None:
        raise NotImplementedError

    def _work_on_held(self) -> None:
        if self._held is None:
            return
        data, self._held = self._held, None
        self._work_on(data)
        if self._held is None and not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        if self._held is None:
            super()._resume_transport_reading()

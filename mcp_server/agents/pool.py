"""The connections to agents that are open and idle: a few for each pod, for a short while."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp_server.agents.agent import AgentAddress
from mcp_server.agents.connection import AgentConnection

# Less than the 30 s after which an agent hangs up.
IDLE_SECONDS = 20.0
IDLE_PER_AGENT = 2


class ConnectionPool:
    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: defaultdict[AgentAddress, dict[AgentConnection, asyncio.TimerHandle]] = defaultdict(dict)

    @asynccontextmanager
    async def connection(self, agent: AgentAddress, *, fresh: bool = False) -> AsyncIterator[AgentConnection]:
        """An idle connection unless `fresh`, or a new one; kept unless an exception passes through here.
        Raises ConnectFailed."""
        connection = None if fresh else self._take(agent)
        connection = connection or await AgentConnection.open(agent, self._port)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._give_back(agent, connection)

    def forget(self, pod_uid: str) -> None:
        for agent in [agent for agent in self._idle if agent.pod_uid == pod_uid]:
            for connection, timer in self._idle.pop(agent).items():
                timer.cancel()
                connection.close()

    def close(self) -> None:
        for agent in list(self._idle):
            self.forget(agent.pod_uid)

    def _take(self, agent: AgentAddress) -> AgentConnection | None:
        idle = self._idle.get(agent)
        while idle:
            connection, timer = idle.popitem()
            timer.cancel()
            if connection.reusable:
                return connection
            connection.close()
        return None

    def _give_back(self, agent: AgentAddress, connection: AgentConnection) -> None:
        if not connection.reusable or len(self._idle[agent]) >= IDLE_PER_AGENT:
            connection.close()
            return
        timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire, agent, connection)
        self._idle[agent][connection] = timer

    def _expire(self, agent: AgentAddress, connection: AgentConnection) -> None:
        connection.close()
        idle = self._idle.get(agent, {})
        idle.pop(connection, None)
        if not idle:
            self._idle.pop(agent, None)

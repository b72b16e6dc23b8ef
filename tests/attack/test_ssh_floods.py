"""What a login notices of others whose clients flood the SSH gateway."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest

from tests.attack.bystander import assert_unharmed, calling, quiet
from tests.attack.ssh_floods import FLOODS
from tests.ssh_gateway.harness import LineClient, log_in

_SECONDS = 3.0
_MODULE = [sys.executable, "-m"]


@dataclass
class Door:
    port: int
    key_file: Path
    loop: asyncio.AbstractEventLoop
    client: LineClient

    def call(self) -> None:
        """What the bystander does; its login was there before the attack."""
        asyncio.run_coroutine_threadsafe(self.client.run("true"), self.loop).result(30)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    files = tmp_path_factory.mktemp("ssh")
    (files / "gateway").mkdir()
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(files / "id")
    (files / "authorized_keys").write_bytes(key.export_public_key())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    with subprocess.Popen(
        [*_MODULE, "tests.attack.ssh_door", files], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        thread.start()

        async def enter() -> LineClient:
            known_hosts = f"[127.0.0.1]:{said['port']} {said['host_key']}"
            connection = await log_in("127.0.0.1", said["port"], "bystander", key, known_hosts)
            client = LineClient(connection, await connection.create_process(encoding=None))
            await client.initialize()
            return client

        client = asyncio.run_coroutine_threadsafe(enter(), loop).result(30)
        yield Door(said["port"], files / "id", loop, client)
        loop.call_soon_threadsafe(client.connection.abort)
        process.kill()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.parametrize("attackers", [1, 6])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_not_noticed_by_who_is_logged_in(door: Door, flood: str, attackers: int) -> None:
    before = quiet(door.call)
    command = [*_MODULE, "tests.attack.ssh_floods", flood, str(door.port), str(door.key_file)]
    with subprocess.Popen([*command, str(attackers), str(_SECONDS + 1)]) as process:
        time.sleep(0.7)  # which it takes to start
        with calling(door.call) as beside:
            time.sleep(_SECONDS)
        assert process.wait() == 0
    assert_unharmed(flood, before, beside, attackers=attackers)

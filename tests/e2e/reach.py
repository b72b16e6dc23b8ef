"""Ways from this machine into the cluster: the address itself where it is reached, else a port-forward."""

from __future__ import annotations

import re
import socket
import subprocess
from dataclasses import dataclass, field

CONNECT_SECONDS = 2


@dataclass
class Reach:
    """Of one namespace; `close` ends what it began."""

    namespace: str
    _forwards: dict[str, tuple[subprocess.Popen[str], str]] = field(default_factory=dict)

    def address(self, target: str, ip: str, port: int) -> str:
        """`host:port` for a `pod/NAME` or `service/NAME` that has this IP."""
        if _connects(ip, port):
            return f"{ip}:{port}"
        key = f"{target}:{port}"
        if key not in self._forwards or self._forwards[key][0].poll() is not None:
            self._forwards[key] = self._forward(target, port)
        return self._forwards[key][1]

    def close(self) -> None:
        for process, _ in self._forwards.values():
            process.terminate()
            process.wait()

    def _forward(self, target: str, port: int) -> tuple[subprocess.Popen[str], str]:
        command = ["kubectl", "-n", self.namespace, "port-forward", target, f":{port}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        begun = process.stdout.readline()  # Forwarding from 127.0.0.1:41234 -> 8443
        found = re.search(r"127\.0\.0\.1:\d+", begun)
        assert found, f"no port-forward to {target}: {begun}"
        return process, found[0]


def _connects(ip: str, port: int) -> bool:
    try:
        socket.create_connection((ip, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True

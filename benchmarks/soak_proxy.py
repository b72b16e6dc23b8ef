"""Whether the credential proxy's memory and descriptors stay flat under minutes of load: `make soak`.

Kept connections, new ones and large bodies take turns. The first tenth of the time is for warming up.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.proxy import HOST, Load, Target, load_command, running, start_proxy
from tests.cred_proxy.origin import PrivateAuthority

ROUND = (("keepalive", "/1k", 16), ("connections", "/1k", 8), ("keepalive", "/100k", 8))
SECONDS = 5.0
# What the allocator may still add after the warm-up.
GROWTH_MEGABYTES = 10.0
GROWTH_DESCRIPTORS = 64


def open_descriptors(target: Target) -> int:
    assert target.process is not None
    return len(list(Path(f"/proc/{target.process.pid}/fd").iterdir()))


def soak(load: Load, target: Target, minutes: float) -> bool:
    """Print a line for each round; true when the last is like the first one after the warm-up."""
    started = time.monotonic()
    first: tuple[float, int] | None = None
    while (elapsed := time.monotonic() - started) < minutes * 60 or first is None:
        rates = [load.run(target, mode, path, clients, SECONDS) for mode, path, clients in ROUND]
        memory, descriptors = target.resident_megabytes(), open_descriptors(target)
        if first is None and elapsed >= minutes * 6:
            first = memory, descriptors
        per_second = ", ".join(f"{rate.per_second:.0f}/s" for rate in rates)
        print(f"{elapsed:5.0f} s  {memory:6.1f} MB  {descriptors:4d} descriptors  {per_second}", flush=True)
    grown, more = memory - first[0], descriptors - first[1]
    print(f"after the warm-up: {grown:+.1f} MB, {more:+d} descriptors")
    return grown <= GROWTH_MEGABYTES and more <= GROWTH_DESCRIPTORS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        authority = PrivateAuthority()
        authority.server_context(HOST, directory)
        command = load_command(directory)
        certificate = directory / f"{HOST}.pem"
        origin = stack.enter_context(
            running([*command, "origin", "--certificate", certificate], output=subprocess.PIPE)
        )
        assert origin.stdout is not None
        load = Load(command, f"{HOST}:{int(origin.stdout.readline())}")
        target = start_proxy(stack, directory, load.origin, authority)
        sys.exit(0 if soak(load, target, minutes) else 1)


if __name__ == "__main__":
    main()

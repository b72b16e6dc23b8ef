"""What a model that has a shell can try against the host, the server and other sessions."""

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e_local.harness import Server

PYTHON = "/usr/bin/python3"
needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"the sandbox has no {PYTHON}")


@pytest.fixture(autouse=True)
def server_survives(server: Server) -> Iterator[None]:
    """After every attack the server runs and serves another session."""
    yield
    assert server.process.poll() is None
    assert server.call("bystander", "echo $((6 * 7))").stdout == "42\n"


def test_sessions_see_neither_each_others_files_nor_processes(server: Server) -> None:
    server.call("a", "echo secret-of-a > file; exec -a process-of-a sleep 300 &")
    answer = server.call(
        "b", "cat /workspace/file; ls -A /workspace; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )
    assert "secret-of-a" not in answer.text
    assert "process-of-a" not in answer.text
    assert "process-of-a" in server.call("a", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").text
    server.end("a")


def test_a_sandbox_sees_no_process_of_the_host(server: Server) -> None:
    pids = server.call("a", "(cd /proc; echo [0-9]*)").stdout.split()
    assert len(pids) < 10
    assert server.call("a", f"kill -0 {server.pid}").exit_code == 1


def test_a_sandbox_sees_nothing_of_the_server(server: Server) -> None:
    """Neither its environment, its token, its state, nor a home directory."""
    everything = server.call(
        "a",
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n';"
        f"ls -la / /home /root {server.root} {Path.home()} 2>&1; cat {server.state}/token 2>&1",
    ).text
    assert "swordfish" not in everything
    assert server.token not in everything
    for path in (server.root, server.state, Path.home()):
        assert server.call("a", f"test -e {path}").exit_code == 1


def test_the_only_network_interface_is_loopback(server: Server) -> None:
    assert (
        server.call("a", "tail -n +3 /proc/net/dev | wc -l; cat /proc/net/route | wc -l").stdout == "1\n1\n"
    )
    for target in ("127.0.0.1", "1.1.1.1", "::1", "2606:4700:4700::1111"):
        assert server.call("a", f"timeout 5 bash -c 'exec 3<>/dev/tcp/{target}/443'").is_error


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_service_on_the_hosts_loopback_is_out_of_reach(server: Server, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.create_server((host, 0), family=family)) as listener:
        listener.settimeout(0.5)
        port = listener.getsockname()[1]
        assert server.call("a", f"timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/{port}'").is_error
        with pytest.raises(TimeoutError):
            listener.accept()


@needs_python
def test_an_abstract_socket_of_the_host_is_out_of_reach(server: Server) -> None:
    name = f"cli-mcp-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        assert "ConnectionRefusedError" in server.call("a", f'{PYTHON} -c "{connect}"').text


@needs_python
@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_ALG", "AF_BLUETOOTH", "AF_CAN"])
def test_sockets_that_ignore_network_namespaces_cannot_be_made(server: Server, family: str) -> None:
    text = server.call(
        "a", f'{PYTHON} -c "import socket; socket.socket(socket.{family}, socket.SOCK_DGRAM)"'
    ).text
    assert "Address family not supported" in text


@pytest.mark.parametrize(
    "directory", ["/", "/usr", "/usr/bin", "/etc", "/dev", "/run", "/run/cli-mcp", "/proc", "/var", "/var/.."]
)
def test_the_system_is_read_only(server: Server, directory: str) -> None:
    answer = server.call("a", f": > {directory}/new || mkdir {directory}/new")
    assert answer.is_error


def test_the_sandbox_knows_a_user_of_its_own(server: Server) -> None:
    assert server.call("a", "whoami; id -un; id -gn; ls -ld /workspace | cut -d' ' -f3-4; echo ~").stdout == (
        "sandbox\nsandbox\nsandbox\nsandbox sandbox\n/workspace\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        "unshare --user --map-root-user true",
        "unshare --net true",
        "mount -t tmpfs none /tmp",
        "mknod device c 1 3",
        "mknod device b 254 0",
        "chroot / true",
        "nsenter --target 1 --net true",
        "chown 0 .",
        "setpriv --reuid=0 true",
        "hostname changed",
        "date --set=2020-01-01",
        "dmesg",
        "sysctl -w kernel.hostname=changed",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "echo c > /proc/sysrq-trigger",
        "echo core > /proc/sys/kernel/core_pattern",
        "cat /proc/kcore",
        "cat /etc/shadow",
        "ls /sys/kernel",
    ],
)
def test_privileged_operations_fail(server: Server, command: str) -> None:
    assert server.call("a", command).is_error


@needs_python
@pytest.mark.parametrize(
    "number", {"x86_64": [250, 248, 425, 321, 298, 323], "aarch64": [219, 217, 425, 280]}[os.uname().machine]
)
def test_kernel_interfaces_that_no_shell_needs_are_refused(server: Server, number: int) -> None:
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
        f"libc.syscall({number}, 0, 0, 0, 0, 0); print(ctypes.get_errno())"
    )
    assert server.call("a", f'{PYTHON} -c "{code}"').stdout == "1\n"


def test_a_setuid_program_in_the_workspace_gives_nothing(server: Server) -> None:
    answer = server.call(
        "a", "cp /usr/bin/id id && chmod 6755 id && ./id -u; setpriv --no-new-privs id -u; su -c id"
    )
    assert answer.stdout.splitlines()[:2] == ["1000", "1000"]


@pytest.mark.parametrize("process", ["1", "self"])
def test_no_link_of_a_process_leads_out(server: Server, process: str) -> None:
    """The root, the working directory and the descriptors that a process has are all of the sandbox."""
    root = f"/proc/{process}/root"
    inodes = server.call("a", f"stat -Lc %d:%i / {root} {root}/.. {root}/../.. /proc/{process}/cwd/..").stdout
    assert len(set(inodes.split())) == 1
    targets = server.call("a", f"readlink /proc/{process}/fd/* /proc/{process}/exe | sort -u").stdout
    allowed = r"pipe:\[\d+\]|/dev/null|/usr/bin/\w+|/run/cli-mcp/\S+|/proc/\d+/fd|/workspace/\S*"
    assert [line for line in targets.splitlines() if not re.fullmatch(allowed, line)] == []


def test_the_supervisor_survives_the_shell(server: Server) -> None:
    assert server.call("kill-all", "touch kept; cd /tmp; kill -9 -1").is_error
    answer = server.call("kill-all", "kill -9 1; kill -TERM 1; kill -STOP 1; pwd; ls /workspace")
    assert answer.stdout.endswith("/tmp\nkept\n")


@needs_python
def test_the_supervisors_memory_may_be_read_without_harm(server: Server) -> None:
    """It is a process of the same sandbox: reading it shows nothing that the shell does not have, and writing
    it breaks this session alone."""
    attack = """
import re
secrets = b''
for line in open('/proc/1/maps'):
    if ' rw-p ' not in line: continue
    start, end = (int(part, 16) for part in line.split()[0].split('-'))
    with open('/proc/1/mem', 'r+b', 0) as memory:
        memory.seek(start)
        try:
            secrets += memory.read(end - start)
            memory.seek(start); memory.write(b'x' * (end - start))
        except OSError: pass
print('swordfish' in secrets.decode('latin1'))
"""
    answer = server.call("ptrace", f"{PYTHON} - <<'E'\n{attack}\nE")
    assert "True" not in answer.text
    server.end("ptrace")


def test_what_is_written_to_the_exchange_is_only_output(server: Server) -> None:
    answer = server.call(
        "fifo", 'for f in /run/cli-mcp/*; do timeout 1 bash -c "echo forged > $f"; done; echo done'
    )
    assert "done" in answer.text
    assert server.call("fifo", "echo next").stdout == "next\n"


def test_the_spill_directory_as_a_link_to_the_host_is_not_followed(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o777)
    before = sorted(os.listdir("/etc"))
    for link in (str(target), "/etc", "../../..", "/proc/self/fd"):
        server.call("spill", f"rm -rf .cli-mcp; ln -s {link} .cli-mcp")
        answer = server.call("spill", "head -c 300000 /dev/zero | tr '\\0' x")
        assert answer.structured["truncated"]
        assert answer.exit_code == 0
    assert list(target.iterdir()) == []
    assert sorted(os.listdir("/etc")) == before


def test_a_spill_file_prepared_as_a_link_is_not_written_through(server: Server, tmp_path: Path) -> None:
    server.call(
        "spill2", "mkdir -p .cli-mcp; for i in $(seq 50); do ln -s /workspace/victim .cli-mcp/$i.stdout; done"
    )
    server.call("spill2", "echo intact > victim; head -c 300000 /dev/zero")
    assert server.call("spill2", "cat victim").stdout == "intact\n"


def test_a_workspace_that_was_replaced_by_a_link_is_a_link_in_the_sandbox_alone(server: Server) -> None:
    assert server.call("swap", "rmdir /workspace || mv /workspace /tmp/w || ln -sfT /etc /workspace").is_error
    assert all(not path.is_symlink() and path.is_dir() for path in server.workspaces())


@pytest.mark.parametrize(
    "command", ["mkdir -p $(printf 'd/%.0s' {1..1000})", "mkdir $'new\\nline' -- '-rf' ' ' '*' $'\\xff'"]
)
def test_odd_trees_are_deleted_with_their_session(server: Server, command: str) -> None:
    deeper = (
        "for i in 1 2 3 4 5; do mkdir -p $(printf 'd/%.0s' {1..1000}); cd $(printf 'd/%.0s' {1..1000}); done"
    )
    server.call("odd", f"{command}; {deeper}; chmod 000 /workspace/*")
    assert server.end("odd", workspace=True) == 204
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and list((server.state / "trash").iterdir()):
        time.sleep(0.1)
    assert list((server.state / "trash").iterdir()) == []
    assert not any(path.name.startswith("odd-") for path in server.workspaces())


def test_ten_gigabytes_of_output_leave_memory_flat(server: Server) -> None:
    """As much of it as goes through in some seconds, while another session is served."""
    before = resident_kib(server.pid)
    done = threading.Event()

    def flood() -> None:
        server.call("flood", "head -c 10G /dev/zero", timeout=12)
        done.set()

    thread = threading.Thread(target=flood)
    thread.start()
    while not done.is_set():
        started = time.monotonic()
        assert server.call("beside", "echo here").stdout == "here\n"
        assert time.monotonic() - started < 5
        assert resident_kib(server.pid) < before + 150_000
        time.sleep(0.2)
    thread.join()
    server.end("flood", workspace=True)


def test_a_thousand_calls_at_once_are_answered(server: Server) -> None:
    """Most are told at once that the session is busy; none is lost and none is run twice."""
    answers: list[str] = []
    gate = threading.Semaphore(50)

    def call(number: int) -> None:
        with gate:
            answer = server.call("queue", f"echo {number} >> ran; sleep 0.02", timeout=60)
            answers.append("ran" if answer.structured.get("exit_code") == 0 else answer.text)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ran = server.call("queue", "sort -u ran | wc -l; wc -l < ran").stdout.split()
    assert len(answers) == 1000
    assert ran == [str(answers.count("ran"))] * 2
    assert all("busy" in text for text in answers if text != "ran")


def resident_kib(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0])


def test_hard_links_and_host_files(server: Server) -> None:
    """No file of the host can be linked into the workspace, where the server could change it."""
    assert server.call("a", "ln /usr/bin/id linked || ln /etc/passwd linked").is_error


def test_what_runs_in_the_sandbox_has_no_capability(server: Server) -> None:
    text = server.call("a", "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status /proc/1/status").stdout
    values = {line.split(":", 1)[1].replace("\t", " ").strip() for line in text.splitlines()}
    caps = {value for value in values if value.startswith("Cap")}
    assert all(value.endswith("0000000000000000") for value in caps)
    assert {"NoNewPrivs: 1", "Seccomp: 2"} <= values


def test_sandboxes_of_root_have_users_of_their_own(server: Server) -> None:
    server.call("a", "true")
    server.call("b", "true")
    uids = [path.stat().st_uid for path in server.workspaces()]
    server_uid = Path(f"/proc/{server.pid}").stat().st_uid
    if server_uid == 0:
        assert len(set(uids)) == len(uids) and 0 not in uids
    else:
        assert set(uids) == {server_uid}


def test_subprocess_of_the_host_is_not_disturbed(server: Server) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        server.call("a", "kill -9 -1; for p in $(seq 1 100); do kill -9 $p; done")
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()

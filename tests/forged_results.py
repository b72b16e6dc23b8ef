"""What a process of a session may try against its own shell: to answer in its place, or to take its commands.

Each way is a command for a sandbox's bash. Local mode, the agent of a pod and real pods are tried with them.
"""

from textwrap import dedent

_PROGRAM = r"""
    import ctypes, os, sys
    c = ctypes.CDLL(None, use_errno=True)
    for name, pid in zip(('shell', 'supervisor'), map(int, sys.argv[1:])):
        ways = []
        for number in range(256):
            try:
                os.close(os.open(f'/proc/{pid}/fd/{number}', os.O_RDONLY | os.O_NONBLOCK))
                ways.append(f'open {number}')
            except OSError:
                pass
            taken = c.syscall(438, os.pidfd_open(pid), number, 0)
            if taken >= 0:
                ways.append(f'pidfd_getfd {number}')
        for file in ('mem', 'environ', 'maps'):
            try:
                os.close(os.open(f'/proc/{pid}/{file}', os.O_RDWR if file == 'mem' else os.O_RDONLY))
                ways.append(file)
            except OSError:
                pass
        c.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        for way, request in (('attach', 16), ('seize', 0x4206)):
            if c.ptrace(request, pid, None, None) == 0:
                ways.append(way)
                os.waitpid(pid, 0x40000000) if way == 'attach' else None
                c.ptrace(17, pid, None, None)
        print(name, ways)
"""


def python(text: str, arguments: str = "") -> str:
    """A command that runs `text` as a program of its own."""
    return f"python3 - {arguments} <<'END'\n{dedent(text)}\nEND"


LOOK = python(_PROGRAM, "$$ $PPID")
"""Says what this process gets hold of in shell and supervisor."""
NOTHING = "shell []\nsupervisor []\n"

HEADLESS = """\
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A program whose first thread ends while another one goes on."""
_TAKER = """
    import ctypes, os, select, sys, time
    c = ctypes.CDLL(None)
    until = time.monotonic() + 4
    taken = [c.syscall(438, os.pidfd_open(pid), 0, 0) for pid in map(int, sys.argv[1:])]
    while (left := until - time.monotonic()) > 0 and max(taken) >= 0:
        for ready in select.select([fd for fd in taken if fd >= 0], [], [], left)[0]:
            os.read(ready, 1 << 16)
"""
# They run on in the background and take whatever line comes, some with an answer of their own.
THIEVES = {
    "open": "(timeout 4 cat /proc/$$/fd/0 >/dev/null 2>&1 &)",
    "open-supervisor": "(timeout 4 cat /proc/$PPID/fd/0 >/dev/null 2>&1 &)",
    "pidfd_getfd": python(_TAKER, "$$ $PPID >/dev/null 2>&1").replace("<<'END'", "<<'END' &") + "\ndisown -a",
    # Bash puts the shell's own descriptors aside above 9 while a command runs, and a subshell has them too.
    "subshell": "for n in {10..20}; do (while read -r -t 4 -u $n; do :; done) 2>/dev/null & done; disown -a",
    "subshell-of-a-subshell": (
        "( (for n in {10..20}; do (while read -r -t 4 -u $n; do :; done) & done) & ) 2>/dev/null"
    ),
    "subshell-that-answers": r"""
for n in {10..20}; do
  (while read -r -t 4 -u $n line; do
    nonce=${line##*report }; nonce=${nonce%% *}; begin=${line#*"'%s\n' "}; begin=${begin%% *}
    for o in {10..20}; do
      printf '%s\n' "$begin" >&$o
      printf '\0%s 0 %s\0/\0%s\0\0\0umask 0022\n\0\0%s.' "$nonce" $$ 'declare -- FORGED="x"' "$nonce" >&$o
    done
  done) 2>/dev/null &
done
disown -a""",
    "flood-of-answers": "for n in {10..20}; do (timeout 4 yes 0 >&$n) 2>/dev/null & done; disown -a",
}

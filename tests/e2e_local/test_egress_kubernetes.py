"""kubectl in a sandbox works on a cluster, and whatever it sends along, the API server sees the credential of
the instance alone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest

from cli_mcp.kubeconfig import DUMMY_TOKEN
from tests.cred_proxy.origin import Received
from tests.e2e_local.conftest import USERS
from tests.e2e_local.origins import API, TOKEN, World, eventually, kubectl_of_host, world

SESSION = "kube"
STOLEN = "token-that-the-client-made-up"
URL = f"https://{API}"
# The first event of a watch takes a few milliseconds here; this is for the busiest machine.
FIRST_EVENT_SECONDS = 1.0
IDENTITY_FIELDS = (
    "cookie",
    "x-api-key",
    "proxy-authorization",
    "x-remote-",
    "x-forwarded-",
    "x-ssl-",
    "x-auth-",
)


@pytest.fixture(scope="module", params=USERS)
def kube(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(unprivileged=request.param == "user") as made:
        yield made


@pytest.fixture(autouse=True)
def only_the_injected_credential(kube: World) -> Iterator[None]:
    """After every test, for every request that has reached the API server."""
    kube.api.requests.clear()
    yield
    assert [request.values("authorization") for request in kube.api.requests] == [
        [f"Bearer {TOKEN}"] for _ in kube.api.requests
    ]
    for request in kube.api.requests:
        assert claims(request) == []


def claims(request: Received) -> list[tuple[str, str]]:
    """What says in any way who the client is, besides the injected credential."""
    return [
        (name, value)
        for name, value in request.fields
        if name.lower().startswith(("impersonate-", *IDENTITY_FIELDS))
        or STOLEN in value
        or DUMMY_TOKEN in value
    ]


@pytest.fixture
def kubectl(kube: World) -> World:
    """With kubectl in the workspace, and a pod in the cluster."""
    kube.install(SESSION, "kubectl", kubectl_of_host())
    if kube.api.api.find("pods", "default", "web") is None:
        running = kube.api.api.create(pod("web")) | {"status": {"phase": "Running"}}
        kube.api.api.update(running, "status")
    return kube


def pod(name: str) -> dict[str, object]:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


MANIFEST = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: blue}\n"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("kubectl get namespaces -o name", "namespace/default"),
        ("kubectl get pods", "web"),
        ("kubectl get pod web -o jsonpath='{.spec.containers[0].image}'", "i"),
        (
            f"kubectl apply -f - <<'E'\n{MANIFEST}E\n"
            f"kubectl apply -f - <<'E'\n{MANIFEST.replace('blue', 'red')}E\n"
            "kubectl get configmap settings -o jsonpath={.data.color}",
            "configmap/settings created\nconfigmap/settings configured\nred",
        ),
        (f"kubectl apply --server-side -f - <<'E'\n{MANIFEST}E", "configmap/settings serverside-applied"),
        ("kubectl delete configmap settings", 'configmap "settings" deleted'),
        ("kubectl logs web", "first line"),
        ("kubectl explain pod.spec", "What it runs."),
        ("kubectl config get-contexts -o name", "x"),
        ("env -i PATH=$PATH KUBECONFIG=$KUBECONFIG HOME=/tmp kubectl get pods -o name", "pod/web"),
    ],
)
def test_kubectl_works(kubectl: World, command: str, says: str) -> None:
    answer = kubectl.server.call(SESSION, command)
    assert says in answer.stdout, answer.text


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("exec web -- id", "/api/v1/namespaces/default/pods/web/exec"),
        ("attach web", "/api/v1/namespaces/default/pods/web/attach"),
        ("port-forward web 8000:80", "/api/v1/namespaces/default/pods/web/portforward"),
        ("cp web:/etc/passwd p", "/api/v1/namespaces/default/pods/web/exec"),
        ("get --raw /api/v1/nodes/n/proxy/run/x", "/api/v1/nodes/n/proxy/run/x"),
        ("get --raw /api/v1/namespaces/default/services/s/proxy/", None),
        ("create token default", "/api/v1/namespaces/default/serviceaccounts/default/token"),
    ],
)
def test_what_would_get_around_the_proxy_is_refused_readably(
    kubectl: World, command: str, path: str | None
) -> None:
    answer = kubectl.server.call(SESSION, f"timeout 20 kubectl {command}")
    assert answer.is_error
    assert "path not allowed" in answer.text or "upgrade not allowed" in answer.text, answer.text
    asked = [request.target.partition("?")[0] for request in kubectl.api.requests]
    assert not [target for target in asked if target.endswith(("/exec", "/attach", "/portforward", "/token"))]
    assert not [target for target in asked if "/proxy" in target]
    if path is not None:
        assert (path, 403) in [(line["path"], line["status"]) for line in kubectl.audit()]


def smuggled_kubeconfig(kube: World) -> str:
    text = kube.kubeconfig(STOLEN).replace("certificate-authority-data", "x-unused")
    return text.replace("server:", "certificate-authority: /etc/cli-mcp/proxy-ca/ca.crt\n    server:")


@pytest.mark.parametrize(
    "options",
    [
        f"--token={STOLEN}",
        f"--username=admin --password={STOLEN}",
        "--insecure-skip-tls-verify",
        "--kubeconfig=smuggled",
        f"--server={URL} --token={STOLEN} --certificate-authority=$SSL_CERT_FILE --kubeconfig=/dev/null",
    ],
)
def test_an_identity_of_its_own_takes_kubectl_nowhere_else(kubectl: World, options: str) -> None:
    kubectl.server.call(SESSION, f"cat > smuggled <<'E'\n{smuggled_kubeconfig(kubectl)}E")
    answer = kubectl.server.call(SESSION, f"kubectl {options} get pods -o name")
    if answer.is_error:
        # kubectl refuses some combinations by itself, before any request.
        assert kubectl.api.requests == [], answer.text
        assert "--username" in options, answer.text
    else:
        assert answer.stdout == "pod/web\n"


@pytest.mark.parametrize(
    "options",
    [
        f"-H 'Authorization: Bearer {STOLEN}'",
        f"-H 'aUTHORIZATION: Bearer {STOLEN}' -H 'Authorization: Basic {STOLEN}'",
        f"-H 'Authorization: Bearer {STOLEN}' -H 'Connection: Authorization'",
        f"-k -u admin:{STOLEN}",
        "--cacert $SSL_CERT_FILE --capath /etc/ssl/certs",
        f"-H 'X-Api-Key: {STOLEN}' -b 'session={STOLEN}'",
        "-H 'X-SSL-Client-Cert: x' -H 'X-Auth-Request-User: admin' -H 'X-Forwarded-For: 10.0.0.1'",
        f"--proxy-header 'Authorization: Bearer {STOLEN}' --proxy-user a:{STOLEN}",
        f"-H 'Authorization: Bearer {DUMMY_TOKEN}'",
    ],
)
def test_the_api_server_sees_no_identity_that_curl_claims(kube: World, options: str) -> None:
    answer = kube.server.call("curl", f"curl -sS -w ' %{{http_code}}' {options} {URL}/api/v1/namespaces")
    assert answer.stdout.endswith(" 200"), answer.text
    assert len(kube.api.requests) == 1


@pytest.mark.parametrize(
    "command",
    [
        "kubectl --as=system:admin get pods",
        "kubectl --as=system:admin --as-group=system:masters --as-uid=1 get pods",
        "kubectl auth can-i get pods --as=nobody",
        f"curl -sS -H 'Impersonate-User: system:admin' {URL}/api/v1/namespaces",
        f"curl -sS -H 'impersonate_user: system:admin' -H 'Impersonate-Extra-scopes: all' {URL}/api",
        f"curl -sS -H 'X-Remote-User: admin' -H 'X-Remote-Group: system:masters' {URL}/api/v1/namespaces",
    ],
)
def test_to_ask_as_somebody_else_is_refused_readably(kubectl: World, command: str) -> None:
    answer = kubectl.server.call(SESSION, command)
    assert "not available from a sandbox" in answer.text, answer.text
    assert "yes" not in answer.stdout
    assert kubectl.api.requests == []


def test_a_token_in_a_websocket_protocol_does_not_reach_the_api_server(kube: World) -> None:
    upgrade = (
        "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' "
        f"-H 'Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{STOLEN}, v4.channel.k8s.io'"
    )
    answer = kube.server.call("curl", f"curl -sS {upgrade} {URL}/api/v1/namespaces?watch=true")
    assert '"kind": "Status"' in answer.stdout
    assert "upgrade not allowed" in answer.stdout
    assert kube.api.requests == []


@contextmanager
def timed_lines(kubectl: World, session: str, command: str) -> Iterator[Path]:
    """A file in which each line of the command's output stands with the time at which it came."""
    kubectl.server.call(
        session,
        f"export PATH=/workspace/bin:$PATH; rm -f lines; {command} 2>&1 | "
        'while read -r line; do echo "$EPOCHREALTIME $line"; done >> lines &',
    )
    yield kubectl.workspace(session) / "lines"
    kubectl.server.call(session, "kill $(jobs -p)")


def arrival(lines: Path, text: str) -> float:
    """When the line with `text` came, as seconds of the system's clock."""
    found: list[str] = []

    def came() -> bool:
        content = lines.read_text() if lines.exists() else ""
        found[:] = [line for line in content.splitlines() if text in line]
        return bool(found)

    eventually(came)
    return float(found[0].split()[0])


def test_a_watch_shows_an_event_at_once(kubectl: World) -> None:
    with timed_lines(kubectl, SESSION, "kubectl get pods -w -o name") as lines:
        arrival(lines, "pod/web")
        # The list is shown before the watch begins.
        eventually(lambda: any("watch=true" in request.target for request in kubectl.api.requests))
        sent = time.time()
        kubectl.api.api.create(pod("late"))
        delay = arrival(lines, "pod/late") - sent
    kubectl.api.api.delete("pods", "default", "late")
    assert delay < FIRST_EVENT_SECONDS


def test_followed_logs_show_a_line_at_once(kubectl: World) -> None:
    with timed_lines(kubectl, SESSION, "kubectl logs -f web") as lines:
        arrival(lines, "first line")
        eventually(lambda: kubectl.api.followers == 1)
        delays = []
        for number in range(10):
            sent = time.time()
            kubectl.thread.run(kubectl.api.log(f"line {number}."))
            delays.append(arrival(lines, f"line {number}.") - sent)
    assert median(delays) < FIRST_EVENT_SECONDS
    eventually(lambda: kubectl.api.followers == 0)

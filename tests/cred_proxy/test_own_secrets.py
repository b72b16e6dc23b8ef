"""Which requests would include the instance's own Secrets, as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_mcp.proxy_config import OwnSecrets
from cred_proxy.own_secrets import judge_secrets
from cred_proxy.refusal import Reason, Refusal

OWN = OwnSecrets(namespace="team", names=("cli-mcp-a-kubeconfig", "cli-mcp-a-session-key"))
ONE = "/api/v1/namespaces/team/secrets/cli-mcp-a-session-key"
TEAM = "/api/v1/namespaces/team/secrets"
ALL = "/api/v1/secrets"
NOT_THE_TWO = "fieldSelector=metadata.name!=cli-mcp-a-kubeconfig,metadata.name!=cli-mcp-a-session-key"
NOT_THE_TEAM = "fieldSelector=metadata.namespace!=team"


@pytest.mark.parametrize(
    ("methods", "path", "query"),
    [
        ("GET HEAD PUT PATCH DELETE POST", ONE, ""),
        ("GET DELETE", f"{ONE}/", ""),
        ("GET", f"{ONE}/status", ""),
        ("GET", ONE.replace("secrets/cli", "Secrets/CLI"), ""),
        ("GET", ONE.replace("/api/v1/", "/api/v1/watch/"), ""),
        ("GET", ONE.replace("/api/v1/", "/API/v2/"), ""),
        ("GET", ONE, NOT_THE_TWO),
        ("GET", "/api/v1/secrets/cli-mcp-a-session-key", ""),
        ("GET HEAD DELETE", TEAM, ""),
        ("GET DELETE", f"{TEAM}/", "limit=500"),
        ("GET", TEAM, "watch=true&resourceVersion=1"),
        ("GET", TEAM.replace("/api/v1/", "/api/v1/watch/"), ""),
        ("GET", TEAM, "labelSelector=app%3Dx"),
        ("GET", TEAM, "fieldSelector=metadata.name%3Dcli-mcp-a-session-key&watch=1"),
        ("GET", TEAM, "fieldSelector=metadata.name==cli-mcp-a-session-key"),
        ("GET", TEAM, "fieldSelector=metadata.name!=cli-mcp-a-session-key"),
        ("GET", TEAM, "fieldSelector=type!=x"),
        ("GET", TEAM, "fieldSelector="),
        ("GET", TEAM, "fieldSelector=metadata.namespace=team"),
        ("GET", TEAM, "fieldSelector=metadata.namespace!=other"),
        ("GET HEAD DELETE", ALL, ""),
        ("GET", ALL.replace("/api/v1/", "/api/v1/watch/"), ""),
        ("GET", ALL, "fieldSelector=metadata.namespace!=other"),
        # what the API server may read in another way, or not at all
        ("GET", TEAM, f"{NOT_THE_TWO}&fieldSelector=type%3Dx"),
        ("GET", TEAM, f"fieldSelector=type%3Dx&{NOT_THE_TWO}"),
        ("GET", TEAM, f"{NOT_THE_TWO};x"),
        ("GET", TEAM, f"x;{NOT_THE_TWO}"),
        ("GET", TEAM, f"{NOT_THE_TWO}%"),
        ("GET", TEAM, NOT_THE_TWO.replace("!=", "!%20=")),
        ("GET", TEAM, NOT_THE_TWO.replace("!=", "\\!=")),
        ("GET", TEAM, NOT_THE_TWO.replace("fieldSelector", "fieldselector")),
        ("GET", TEAM, NOT_THE_TWO.replace("fieldSelector", "labelSelector")),
        ("GET", TEAM, NOT_THE_TWO.replace("name!", "Name!")),
        ("GET", TEAM, "fieldSelector=metadata.name=x!=y,type=z"),
        # an API that stands before the API server
        ("GET", "/v1/secrets", ""),
        ("GET", "/v1/secrets/team/cli-mcp-a-session-key", ""),
        ("GET", "/k8s/clusters/local/api/v1/namespaces/team/secrets", NOT_THE_TWO),
    ],
)
def test_what_would_include_one_is_refused(methods: str, path: str, query: str) -> None:
    for method in methods.split():
        refusal = judge_secrets(method, path, query, OWN)
        assert isinstance(refusal, Refusal), method
        assert refusal.reason is Reason.WITHHELD


@pytest.mark.parametrize(
    ("methods", "path", "query"),
    [
        ("GET PUT PATCH DELETE", "/api/v1/namespaces/team/secrets/another", ""),
        ("GET PUT PATCH DELETE", ONE.replace("/team/", "/other/"), ""),
        ("GET DELETE", TEAM.replace("/team/", "/other/"), ""),
        ("POST", TEAM, ""),
        ("GET DELETE", TEAM, NOT_THE_TWO),
        ("GET", TEAM, f"limit=500&{NOT_THE_TWO}&watch=true"),
        ("GET", TEAM, NOT_THE_TWO.replace("!=", "%21%3D").replace(",", "%2C")),
        ("GET", TEAM, f"{NOT_THE_TWO},type=Opaque"),
        ("GET", TEAM, "fieldSelector=metadata.name%3Danother&watch=1"),
        ("GET", TEAM, "fieldSelector=metadata.namespace=other"),
        ("GET", ALL, NOT_THE_TEAM),
        ("GET", ALL, NOT_THE_TWO),
        ("GET", "/api/v1/namespaces/team/configmaps/cli-mcp-a-session-key", ""),
        ("GET", "/api/v1/namespaces/secrets", ""),
        ("GET", "/api/v1/namespaces/secrets/pods", ""),
        ("GET", "/apis/example.com/v1/namespaces/team/secrets", ""),
        ("GET", "/api/v1", ""),
        ("GET", "/openapi/v3/api/v1", ""),
        ("GET", "/version", ""),
    ],
)
def test_nothing_else_is(methods: str, path: str, query: str) -> None:
    for method in methods.split():
        assert judge_secrets(method, path, query, OWN) is None, method


@pytest.mark.parametrize(("path", "selector"), [(TEAM, NOT_THE_TWO), (ALL, NOT_THE_TEAM)])
def test_the_refusal_says_how_to_ask_and_that_is_let_through(path: str, selector: str) -> None:
    refusal = judge_secrets("GET", path, "", OWN)
    assert refusal is not None
    said = refusal.detail.partition("--field-selector=")[2]
    assert f"fieldSelector={said}" == selector
    assert judge_secrets("GET", path, f"fieldSelector={said}", OWN) is None


_VALUES = st.sampled_from(["team", "other", *OWN.names, "another"])
_TERMS = st.tuples(st.sampled_from(["name", "namespace"]), st.sampled_from(["=", "==", "!="]), _VALUES)


@given(st.lists(_TERMS, max_size=5))
def test_what_is_let_through_matches_none_of_them(terms: list[tuple[str, str, str]]) -> None:
    query = "fieldSelector=" + ",".join(
        f"metadata.{field}{operator}{value}" for field, operator, value in terms
    )
    if judge_secrets("GET", ALL, query, OWN) is not None:
        return
    for name in OWN.names:
        values = {"name": name, "namespace": OWN.namespace}
        assert not all((values[field] == value) is (operator != "!=") for field, operator, value in terms)

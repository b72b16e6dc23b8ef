import argparse
from pathlib import Path

import pytest
from lightkube.config.kubeconfig import KubeConfig

from mcp_server.cluster.program import add_instance_options, issuer_of, namespace_of

CONFIG = KubeConfig.from_server("http://127.0.0.1:9", namespace="of-the-kubeconfig").get()


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_instance_options(parser)
    return parser.parse_args(arguments)


def test_instance_and_session_keys_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    for missing in (("--instance", "demo"), ("--session-keys", "keys.json")):
        with pytest.raises(SystemExit):
            parsed(*missing)
    assert vars(parsed("--instance", "demo", "--session-keys", "keys.json")) == {
        "instance": "demo",
        "namespace": None,
        "session_keys": Path("keys.json"),
        "kubeconfig": None,
    }


@pytest.mark.parametrize(
    ("asked", "environment", "namespace"),
    [
        ("asked", {"POD_NAMESPACE": "of-the-pod"}, "asked"),
        (None, {"POD_NAMESPACE": "of-the-pod"}, "of-the-pod"),
        (None, {}, "of-the-kubeconfig"),
    ],
)
def test_the_namespace_is_the_nearest_that_is_named(
    asked: str | None, environment: dict[str, str], namespace: str
) -> None:
    assert CONFIG is not None
    assert namespace_of(asked, CONFIG, environment) == namespace


def test_a_pod_signs_with_its_uid_and_each_process_outside_with_a_name_of_its_own() -> None:
    assert issuer_of({"POD_UID": "uid-1"}) == "uid-1"
    assert issuer_of({}).startswith("outside-")
    assert issuer_of({}) != issuer_of({})

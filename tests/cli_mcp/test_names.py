"""Names fit where Kubernetes allows fewer characters than for most objects."""

import pytest

from cli_mcp.names import InstanceNames

LONGEST = InstanceNames("a" * 44)
DNS_LABEL_CHARACTERS = 63


@pytest.mark.parametrize("name", [LONGEST.server, LONGEST.proxy, LONGEST.ssh, LONGEST.kubeconfig])
def test_names_of_services_and_secrets_of_the_longest_instance_are_dns_labels(name: str) -> None:
    assert len(name) <= DNS_LABEL_CHARACTERS


def test_no_two_kinds_of_object_of_one_instance_share_a_name() -> None:
    names = InstanceNames("demo")
    properties = [key for key, value in vars(InstanceNames).items() if isinstance(value, property)]
    assert len({getattr(names, key) for key in properties}) == len(properties)

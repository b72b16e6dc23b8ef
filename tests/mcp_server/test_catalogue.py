import pytest

from mcp_server.catalogue import ALL_GROUPS, Offering, catalogue, offer

FILES = ["read_file", "write_file", "list_directory", "move_file", "delete_file"]
PROCESSES = ["shell_exec", "process_start", "process_list", "process_kill", "tail_log"]


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ((), []),
        (("bash",), ["bash"]),
        (("files",), FILES),
        (("processes", "bash"), ["bash", *PROCESSES]),
        (ALL_GROUPS, ["bash", *FILES, *PROCESSES]),
    ],
)
def test_groups_have_their_tools_in_one_order_however_they_are_named(
    groups: tuple[str, ...], names: list[str]
) -> None:
    tools = catalogue(groups, "No network.")
    assert list(tools) == names
    assert [tool.definition.name for tool in tools.values()] == names


def test_tools_are_made_anew_only_when_the_offering_changes() -> None:
    current = [Offering(("bash",))]
    tools = offer(lambda: current[0], "Its session is told by the user name.")
    before = tools()
    current[0] = Offering(("bash",))
    assert tools() is before
    current[0] = Offering(("bash",), reach=("api.example.com:443",))
    description = tools()["bash"].definition.description or ""
    assert "api.example.com:443" in description
    assert "Its session is told by the user name." in description

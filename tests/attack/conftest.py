"""Sessions that do their worst for as long as it takes: `make attack` sets CLI_MCP_ATTACK."""

import os
from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "CLI_MCP_ATTACK" in os.environ:
        return
    skip = pytest.mark.skip(reason="takes minutes; make attack")
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(skip)

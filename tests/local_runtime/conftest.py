"""Directories and interpreters for tests of both kinds of user."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_runtime.users import UNPRIVILEGED_UID, as_unprivileged_user, passable_directory


@pytest.fixture
def state_root() -> Iterator[Path]:
    """A directory for state, which sandboxes of other users can reach."""
    with passable_directory() as path:
        yield path


@pytest.fixture
def user_directory() -> Iterator[Path]:
    """A directory of the unprivileged user."""
    with passable_directory(UNPRIVILEGED_UID if os.geteuid() == 0 else None) as path:
        yield path


@pytest.fixture
def user_python() -> list[str]:
    """The command that runs this Python as the unprivileged user."""
    return [*as_unprivileged_user(), sys.executable]

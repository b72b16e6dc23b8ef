"""What the environment says about the installation."""

import pytest

from hooks.settings import DEFAULT_IMAGE, DEFAULT_SANDBOX_IMAGE, InvalidSettings, Settings, settings_from


def test_settings_have_defaults_and_come_from_the_environment() -> None:
    assert settings_from({"CLI_MCP_IMAGE": ""}) == Settings(DEFAULT_IMAGE, DEFAULT_SANDBOX_IMAGE, "generic")
    environment = {"CLI_MCP_IMAGE": "a", "CLI_MCP_SANDBOX_IMAGE": "b", "CLI_MCP_PLATFORM": "openshift"}
    assert settings_from(environment) == Settings("a", "b", "openshift")


def test_how_callers_are_authenticated_comes_from_the_environment() -> None:
    assert settings_from({}).caller_authentication == "self-review"
    environment = {"CLI_MCP_CALLER_AUTHENTICATION": "token-review"}
    assert settings_from(environment).caller_authentication == "token-review"
    with pytest.raises(InvalidSettings, match="use self-review or token-review"):
        settings_from({"CLI_MCP_CALLER_AUTHENTICATION": "none"})


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="use generic or openshift"):
        settings_from({"CLI_MCP_PLATFORM": "OpenShift"})

"""The status of an instance, as the operator writes it and `kubectl describe` shows it."""

from typing import Annotated, Literal

from pydantic import Field

from cli_mcp.api.model import ApiModel, Items


class Condition(ApiModel):
    """One aspect of the instance's state, as all Kubernetes objects report it."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Ready: the instance can serve. WarmPoolReady: the pool is full."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """Why, in one word, such as Ready or SecretsNotFound."""
    message: Annotated[str, Field(max_length=32_768)]
    """Why, as a sentence that names the object and the remedy."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the instance that this is about."""


class SshStatus(ApiModel):
    """What an SSH client needs to know about the gateway."""

    host_key_fingerprint: str | None = None
    """SHA256 fingerprint of the host key, as ssh shows it at the first login."""
    known_hosts: str | None = None
    """Line for the client's known_hosts file."""


class InstanceStatus(ApiModel):
    """What was last observed."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation of the instance that this status is about."""
    warm_pool_ready: Annotated[int, Field(ge=0)] | None = None
    """Sandboxes that are ready for new sessions."""
    warm_pool_desired: Annotated[int, Field(ge=0)] | None = None
    """spec.sandbox.warmPoolSize."""
    resolved_sandbox_image: str | None = None
    """The image that sandboxes run."""
    resolved_agent_image: str | None = None
    """The image that brings the agent into sandboxes whose own image has none."""
    client_service_account: str | None = None
    """ServiceAccount that may call this instance; kubectl create token makes a token for it."""
    ssh: SshStatus | None = None
    """What an SSH client needs to know about the gateway."""
    conditions: Annotated[
        Items[Condition],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = ()
    """Ready and WarmPoolReady."""

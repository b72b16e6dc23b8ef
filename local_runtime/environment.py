"""The environment of a sandbox, with files in place of Secrets and ConfigMaps.

A key of a Secret or ConfigMap is the file `<name>/<key>` below `--secrets-dir`.
"""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli_mcp.api.pod import EnvVar
from cli_mcp.sandbox_environment import OPERATOR_OWNED_ENV
from sandbox_agent.confined import ConfinedDirectory

# Secrets and ConfigMaps cannot be larger, https://kubernetes.io/docs/concepts/configuration/secret/
MAX_VALUE_BYTES = 1 << 20
# As Kubernetes expands `value`: `$(NAME)` is a variable defined before, `$$` a literal `$`.
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


class EnvironmentProblem(Exception):
    """A variable of the instance that cannot be had here; the message says which, why and what to do."""

    def __init__(self, variable: str, reason: str) -> None:
        super().__init__(f"spec.sandbox.env: {variable}: {reason}")


class NoSuchFile(Exception):
    """The file in place of a key is not there."""


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """`directory` is None when no --secrets-dir was given."""

    directory: Path | None

    def read(self, name: str, key: str) -> str:
        """The value of a key, without a final newline, which editors add. Nothing but a regular file inside
        the directory is read, also no link. Raises NoSuchFile, ValueError and OSError."""
        if self.directory is None:
            raise NoSuchFile
        try:
            with ConfinedDirectory(self.directory) as directory:
                fd = directory.open(f"{name}/{key}", os.O_RDONLY)
        except FileNotFoundError:
            raise NoSuchFile from None
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError("it is not a regular file")
            content = file.read(MAX_VALUE_BYTES + 1)
        if len(content) > MAX_VALUE_BYTES:
            raise ValueError(f"it is larger than {MAX_VALUE_BYTES} bytes")
        if b"\0" in content:
            raise ValueError("it contains a NUL byte, which no environment variable can")
        return content.decode("utf-8", "surrogateescape").removesuffix("\n")


def instance_environment(variables: Sequence[EnvVar], files: SecretFiles) -> dict[str, str]:
    """The variables of spec.sandbox.env, without the names that the operator sets itself.

    Raises EnvironmentProblem.
    """
    values: dict[str, str] = {}
    for variable in variables:
        if variable.name in OPERATOR_OWNED_ENV:
            continue
        value = _value(variable, values, files)
        if value is not None:
            values[variable.name] = value
    return values


def overridden_names(variables: Sequence[EnvVar]) -> list[str]:
    return sorted(variable.name for variable in variables if variable.name in OPERATOR_OWNED_ENV)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace references to `values`; one that is unknown stays as it is written."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else values.get(name, match[0])

    return _REFERENCE.sub(replace, text)


def _value(variable: EnvVar, earlier: Mapping[str, str], files: SecretFiles) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, earlier)
    reference = source.secret_key_ref or source.config_map_key_ref
    if reference is None:
        raise EnvironmentProblem(
            variable.name,
            "fieldRef and resourceFieldRef describe a pod, and local mode has none; give a value instead",
        )
    try:
        return files.read(reference.name, reference.key)
    except NoSuchFile:
        if reference.optional:
            return None
        place = files.directory or "DIR"
        remedy = f"put its value into the file {place}/{reference.name}/{reference.key}"
        remedy += "" if files.directory else " and start with --secrets-dir DIR"
        raise EnvironmentProblem(variable.name, f"not found; {remedy}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EnvironmentProblem(
            variable.name, f"{files.directory}/{reference.name}/{reference.key} cannot be used: {reason}"
        ) from None

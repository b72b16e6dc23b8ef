"""Which cluster, and with what credential: the kubeconfig of a program that is in a pod or on a desk."""

from pathlib import Path

import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from cli_mcp.program import CannotStart


def kube_config(file: Path | None) -> SingleConfig:
    """The cluster of `file`, of the pod this runs in, or of KUBECONFIG. Raises CannotStart."""
    try:
        config = (KubeConfig.from_file(file) if file else KubeConfig.from_env()).get()
    except (ConfigError, OSError) as error:
        raise CannotStart(str(error)) from None
    except (yaml.YAMLError, LookupError, TypeError, ValueError):
        # What lightkube raises for what is YAML but no kubeconfig; it may quote credentials.
        raise CannotStart(f"{file or 'the kubeconfig'} cannot be read: it is no kubeconfig") from None
    assert config is not None
    return config

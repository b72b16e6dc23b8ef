"""Sessions in a Kubernetes cluster: one pod each, found, claimed or made by any replica of the server."""

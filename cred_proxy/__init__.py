"""The credential proxy: the only way out of a sandbox.

It ends TLS for the hosts that an instance lists and no others, takes every credential out of a client's
requests and puts the kubeconfig's token into those for its API server. How to embed it: cred_proxy.proxy.
"""

"""Reconcile: what should exist for a CliMcpInstance, as pure functions behind Metacontroller's webhooks.

`sync`, `finalize` and `customize` (hooks.reconcile) know neither clock nor chance nor network; hooks.app is
the only module that does.
"""

"""The CliMcpInstance resource, group `cli-mcp.redhat.com/v1alpha1`: typed fields, defaults and rules."""

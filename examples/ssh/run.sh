#!/usr/bin/env bash
# The whole walk of README.md on a cluster where cli-mcp is installed, then a check with a real MCP client.
#   run.sh            on the cluster of KUBECONFIG
#   run.sh --kind     makes a kind cluster with cli-mcp first
# NAMESPACE (default ssh-example) is made, and deleted at the end unless KEEP=1.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BIN=$HERE/../../.venv/bin
NAMESPACE=${NAMESPACE:-ssh-example}
WORK=$(mktemp -d)
FORWARD=

main() {
  if [ "${1:-}" = --kind ]; then make -C "$HERE/../.." kind-up; fi
  trap clean_up EXIT
  step "Namespace and keys"
  kubectl create namespace "$NAMESPACE"
  make_keys
  step "Instance"
  kubectl -n "$NAMESPACE" apply -f "$HERE/instance.yaml"
  kubectl -n "$NAMESPACE" wait --for=condition=Ready --timeout=180s climcpinstance/agents
  kubectl -n "$NAMESPACE" rollout status deployment/cli-mcp-agents-ssh --timeout=120s
  step "Client configuration"
  forward
  configure_client
  step "Check"
  "$BIN/python" "$HERE/verify.py" agent-one agent-two -- ssh -F "$WORK/agent.config" cli-mcp-agents
  "$BIN/python" "$HERE/verify.py" reviewer -- ssh -F "$WORK/reviewer.config" cli-mcp-agents
  refused "a user name that no route admits" nobody cli-mcp-agents
  refused "the agents' key for the reviewer" reviewer cli-mcp-agents
  refused "forwarding" agent-one -W 127.0.0.1:22 cli-mcp-agents
  refused "sftp" agent-one -s cli-mcp-agents sftp
  step "What the gateway has written down"
  kubectl -n "$NAMESPACE" logs deployment/cli-mcp-agents-ssh | grep '"event"' | tail -5
  echo "All of it works."
}

step() { printf '\n== %s\n' "$1"; }

# The key of the agents and that of the reviewer, and a certificate for the HTTPS way in.
make_keys() {
  for name in agent reviewer; do
    ssh-keygen -q -t ed25519 -N '' -C "$name@example.com" -f "$WORK/$name"
    kubectl -n "$NAMESPACE" create secret generic "$name-keys" --from-file=authorized_keys="$WORK/$name.pub"
  done
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj "/CN=cli-mcp-agents" \
    -addext "subjectAltName=DNS:cli-mcp-agents.$NAMESPACE.svc" \
    -keyout "$WORK/tls.key" -out "$WORK/tls.crt" 2>/dev/null
  kubectl -n "$NAMESPACE" create secret tls cli-mcp-agents-tls --cert="$WORK/tls.crt" --key="$WORK/tls.key"
}

# The gateway's Service at a free port of this machine, PORT. kubectl may end with a connection: then it starts again.
forward() {
  while sleep 0.2; do
    kubectl -n "$NAMESPACE" port-forward service/cli-mcp-agents-ssh "${PORT:-}:22" || true
    PORT=$(forwarded_port)
  done >"$WORK/forward" 2>&1 &
  FORWARD=$!
  for _ in $(seq 100); do
    PORT=$(forwarded_port)
    [ -z "$PORT" ] || return 0
    sleep 0.1
  done
  cat "$WORK/forward" >&2
  return 1
}

forwarded_port() { sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\).*/\1/p;T;q' "$WORK/forward"; }

# known_hosts and, for each key, an ssh_config, from the instance's status.
configure_client() {
  local access=("$BIN/cli-mcp" ssh-config agents --namespace "$NAMESPACE" --host 127.0.0.1 --port "$PORT")
  "${access[@]}" --format known-hosts | tee "$WORK/known_hosts"
  for name in agent reviewer; do
    {
      "${access[@]}" --format ssh-config --identity "$WORK/$name"
      printf '    UserKnownHostsFile %s\n    ConnectionAttempts 10\n' "$WORK/known_hosts"
    } >"$WORK/$name.config"
  done
  cat "$WORK/agent.config"
}

# refused WHAT USERNAME SSH-ARGUMENTS...: fails when the gateway grants that to the agents' key.
refused() {
  local what=$1 username=$2
  shift 2
  if ssh -F "$WORK/agent.config" -l "$username" "$@" </dev/null >"$WORK/out" 2>"$WORK/err"; then
    echo "granted, and should not be: $what" >&2
    return 1
  fi
  echo "refused, as it should be: $what ($(tail -1 "$WORK/err"))"
}

clean_up() {
  [ -z "$FORWARD" ] || { kill "$FORWARD"; pkill -P "$FORWARD"; } || true
  rm -rf "$WORK"
  [ "${KEEP:-}" = 1 ] || kubectl delete namespace "$NAMESPACE" --ignore-not-found --wait=false
}

main "$@"

#!/usr/bin/env bash
# A kind cluster with cli-mcp and a sample instance; safe to repeat. `kind delete cluster --name cli-mcp` removes it all.
#   CLUSTER                its name (cli-mcp)
#   IMAGE, SANDBOX_IMAGE   what `make images` builds
#   METACONTROLLER_IMAGE   another than config/ names; docker has it
#   KIND_ARGS              options of "kind create cluster", such as --image for another version of Kubernetes
#   MAKE                   how make is called
# kind's own network plugin enforces NetworkPolicies from kind 0.24 on. On one that does not, sandboxes find out
# themselves and run nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CLUSTER=${CLUSTER:-cli-mcp}
KIND_WITH_POLICIES=0.24.0
IMAGE=${IMAGE:?the image of hooks, server and proxy}
SANDBOX_IMAGE=${SANDBOX_IMAGE:?the image of sandboxes}

main() {
  require kind "https://kind.sigs.k8s.io/docs/user/quick-start/#installation"
  require kubectl "https://kubernetes.io/docs/tasks/tools/"
  require openssl "your system's packages"
  require_policies
  # shellcheck disable=SC2086  # options, as many as there are
  kind get clusters | grep -qx "$CLUSTER" || kind create cluster --name "$CLUSTER" --wait 180s ${KIND_ARGS:-}
  KUBECONFIG=$(mktemp)
  export KUBECONFIG
  trap 'rm -f "$KUBECONFIG"' EXIT
  kind get kubeconfig --name "$CLUSTER" >"$KUBECONFIG"
  "${MAKE:-make}" images
  # shellcheck disable=SC2086  # nothing when there is none
  kind load docker-image --name "$CLUSTER" "$IMAGE" "$SANDBOX_IMAGE" ${METACONTROLLER_IMAGE:-}
  config/deploy.sh
  config/sample.sh
  echo "kubectl's context for all of this is kind-$CLUSTER."
}

# require COMMAND WHERE-FROM
require() {
  command -v "$1" >/dev/null || die "$1 is not installed; it comes from $2"
}

require_policies() {
  local version
  version=$(kind version -q)
  [ "$(printf '%s\n' "$KIND_WITH_POLICIES" "$version" | sort -V | head -n1)" = "$KIND_WITH_POLICIES" ] ||
    die "kind $version does not enforce NetworkPolicies; $KIND_WITH_POLICIES or newer does"
}

die() {
  echo "kind-up.sh: $*" >&2
  exit 1
}

main

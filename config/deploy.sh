#!/usr/bin/env bash
# Installs cli-mcp in the cluster of KUBECONFIG; safe to repeat. From the environment:
#   OVERLAY               generic (default), openshift or existing-metacontroller
#   IMAGE, SANDBOX_IMAGE, METACONTROLLER_IMAGE   names with tag, instead of those in config/images
#   METACONTROLLER_CRDS   a folder with the manifests of Metacontroller's CRDs, instead of the download
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OVERLAY=${OVERLAY:-generic}
NAMESPACE=cli-mcp-system

main() {
  if [ "$OVERLAY" != existing-metacontroller ]; then
    apply_metacontroller_crds
    kubectl wait --for=condition=Established --timeout=60s crd/compositecontrollers.metacontroller.k8s.io
  fi
  write_kustomization build/deploy
  kubectl apply --server-side --force-conflicts -k build/deploy
  kubectl -n $NAMESPACE rollout status deployment --selector app.kubernetes.io/part-of=cli-mcp --timeout=180s
}

apply_metacontroller_crds() {
  local files
  if [ -z "${METACONTROLLER_CRDS:-}" ]; then
    kubectl apply --server-side --force-conflicts -k metacontroller/crds
    return
  fi
  # Beside them there may be manifests of another installation.
  mapfile -t files < <(grep -l '^kind: *CustomResourceDefinition' "$METACONTROLLER_CRDS"/*.yaml)
  kubectl apply --server-side --force-conflicts "${files[@]/#/--filename=}"
}

# write_kustomization FOLDER: the overlay, with the images of the environment.
write_kustomization() {
  mkdir -p "$1"
  cp config/images/environment.yaml "$1"
  {
    echo "apiVersion: kustomize.config.k8s.io/v1beta1"
    echo "kind: Kustomization"
    echo "resources: [../../config/overlays/$OVERLAY]"
    echo "configurations: [environment.yaml]"
    echo "images:"
    other_image quay.io/cli-mcp/cli-mcp "${IMAGE:-}"
    other_image quay.io/cli-mcp/sandbox "${SANDBOX_IMAGE:-}"
    other_image ghcr.io/metacontroller/metacontroller "${METACONTROLLER_IMAGE:-}"
  } >"$1/kustomization.yaml"
}

# other_image NAME [IMAGE]
other_image() {
  [ -z "$2" ] || echo "  - {name: $1, newName: \"${2%:*}\", newTag: \"${2##*:}\"}"
}

main

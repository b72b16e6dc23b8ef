#!/usr/bin/env bash
# Removes cli-mcp from the cluster of KUBECONFIG: instances, CompositeController, Metacontroller and hooks, CRD.
# In this order, since an instance is only finalized while Metacontroller and the hooks run. Where they do not run any
# more, the instance's finalizer is removed instead, with a warning. Safe to repeat and to interrupt.
#   --keep-instances   leaves instances, their sessions, the CRD and the admission policies for the next installation
#   --timeout SECONDS  how long instances may take to go (180)
# Metacontroller's own CRDs stay, since other controllers may need them; the last line says how they go.
set -euo pipefail

NAMESPACE=cli-mcp-system
CONTROLLER=cli-mcp
CRD=climcpinstances.cli-mcp.redhat.com
CONTROLLER_CRD=compositecontrollers.metacontroller.k8s.io
FINALIZER=metacontroller.io/compositecontroller-$CONTROLLER
# Lines "namespace name index" of the instances that have the finalizer.
# shellcheck disable=SC2016  # the dollars are the template's
FINALIZER_PLACES='{{range .items}}{{$it := .metadata}}{{range $index, $name := $it.finalizers}}
  {{- if eq $name "'$FINALIZER'"}}{{$it.namespace}} {{$it.name}} {{$index}}{{"\n"}}{{end}}{{end}}{{end}}'
PART=app.kubernetes.io/part-of=cli-mcp
# An instance without anybody to finalize it gets as long as a Metacontroller needs to come back from a restart.
ABANDONED_SECONDS=20
# What the API server needs for the deletion of what nothing holds any more.
GONE_SECONDS=60
POLL_SECONDS=2

keep_instances=
timeout=180

main() {
  parse "$@"
  kubectl version >/dev/null || die "the cluster of KUBECONFIG does not answer"
  [ -n "$keep_instances" ] || remove_instances
  remove_controller
  remove_operator
  if [ -z "$keep_instances" ]; then
    # What holds the servers of instances stays as long as they do. Kubernetes before 1.30 does not have it.
    remove_cluster_wide validatingadmissionpolicybinding validatingadmissionpolicy
    remove_crd
  fi
  say "done"
  if exists crd "$CONTROLLER_CRD"; then
    say "Metacontroller's own CRDs stay. When nothing else needs them: kubectl delete crd $CONTROLLER_CRD" \
      "controllerrevisions.metacontroller.k8s.io decoratorcontrollers.metacontroller.k8s.io"
  fi
}

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
    --keep-instances) keep_instances=1 ;;
    --timeout)
      [[ ${2:-} =~ ^[0-9]+$ ]] || die "--timeout needs a number of seconds"
      timeout=$2
      shift
      ;;
    *) die "usage: uninstall.sh [--keep-instances] [--timeout SECONDS]" ;;
    esac
    shift
  done
}

remove_instances() {
  local begin=$SECONDS waited patience
  exists crd "$CRD" || return 0
  say "deleting instances: $(instances)"
  until no_instances; do
    # Again each time, for those that somebody created meanwhile.
    kubectl delete "$CRD" --all --all-namespaces --wait=false >/dev/null
    patience=$timeout
    somebody_finalizes || patience=$ABANDONED_SECONDS
    waited=$((SECONDS - begin))
    if [ $waited -ge $((patience + GONE_SECONDS)) ]; then
      die "these are held by finalizers of others: $(instances)"
    elif [ $waited -ge "$patience" ]; then
      release_instances "nobody finalized it within $patience s"
    fi
    sleep $POLL_SECONDS
  done
}

# Whether there is a Metacontroller that would. One that is not ours cannot be seen from here: it may take its time.
somebody_finalizes() {
  exists crd "$CONTROLLER_CRD" && exists compositecontroller $CONTROLLER || return 1
  exists deployment metacontroller || return 0
  [ "$(kubectl -n $NAMESPACE get deployment metacontroller -o 'jsonpath={.status.readyReplicas}')" ]
}

# What it would have done is left to Kubernetes: children have the instance as their owner and go after it.
release_instances() {
  local namespace name index
  while read -r namespace name index; do
    warn "$namespace/$name: $1; removing its finalizer. Its sessions end at once."
    kubectl -n "$namespace" patch "$CRD" "$name" --type=json --patch "[
      {\"op\": \"test\", \"path\": \"/metadata/finalizers/$index\", \"value\": \"$FINALIZER\"},
      {\"op\": \"remove\", \"path\": \"/metadata/finalizers/$index\"}]" || true # gone, or changed: the next look tells
  done < <(kubectl get "$CRD" --all-namespaces -o go-template="$FINALIZER_PLACES")
}

remove_controller() {
  exists crd "$CONTROLLER_CRD" || return 0
  kubectl delete compositecontroller $CONTROLLER --ignore-not-found --timeout=60s
}

remove_operator() {
  kubectl delete namespace $NAMESPACE --ignore-not-found --timeout=120s ||
    die "namespace $NAMESPACE does not go; kubectl get namespace $NAMESPACE -o yaml says what it waits for"
  remove_cluster_wide clusterrolebinding clusterrole
}

# remove_cluster_wide KIND...
remove_cluster_wide() {
  local kind
  for kind in "$@"; do
    kubectl get "$kind" --selector $PART -o name 2>/dev/null | xargs --no-run-if-empty kubectl delete --ignore-not-found
  done
}

# With it go instances that somebody created meanwhile.
remove_crd() {
  exists crd "$CRD" || return 0
  kubectl delete crd "$CRD" --wait=false
  wait_until $GONE_SECONDS crd_is_gone || die "instances are held by finalizers of others: $(instances)"
}

crd_is_gone() {
  exists crd "$CRD" || return 0
  release_instances "it was created while cli-mcp was removed"
  return 1
}

# Known to be none: an API server that does not answer says nothing about instances.
no_instances() {
  local found
  found=$(instances) && [ -z "$found" ]
}

instances() {
  kubectl get "$CRD" --all-namespaces -o go-template='{{range .items}}{{.metadata.namespace}}/{{.metadata.name}} {{end}}'
}

# exists KIND NAME
exists() {
  local found
  found=$(kubectl -n $NAMESPACE get "$1" "$2" --ignore-not-found -o name) || die "cannot look for $1 $2"
  [ "$found" ]
}

# wait_until SECONDS COMMAND...
wait_until() {
  local end=$((SECONDS + $1))
  until "${@:2}"; do
    [ $SECONDS -lt $end ] || return 1
    sleep $POLL_SECONDS
  done
}

say() { echo "$*"; }
warn() { echo "warning: $*" >&2; }
die() {
  echo "uninstall.sh: $*" >&2
  exit 1
}

main "$@"

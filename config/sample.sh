#!/usr/bin/env bash
# Makes an instance that can look at its own namespace of the cluster of KUBECONFIG, and says how to call it: for trying
# cli-mcp out. An admin would bring a kubeconfig and a certificate; here both are made. Safe to repeat.
#   NAMESPACE   where (cli-mcp-sample)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

NAMESPACE=${NAMESPACE:-cli-mcp-sample}
INSTANCE=investigate # of config/samples/kubernetes.yaml
FILES=build/sample

main() {
  mkdir -p $FILES
  kubectl create namespace "$NAMESPACE" --dry-run=client -o yaml | kubectl apply -f -
  kubectl label --overwrite namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted
  make_credential
  make_certificate
  kubectl -n "$NAMESPACE" apply --server-side -f config/samples/kubernetes.yaml
  kubectl -n "$NAMESPACE" wait --for=condition=Ready --timeout=180s climcpinstance/$INSTANCE
  how_to_call
}

# A kubeconfig with the token of a ServiceAccount that may read what `view` may in this namespace.
make_credential() {
  local identity=investigator token
  k apply -f - <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: $identity}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: $identity-view}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: $identity, namespace: "$NAMESPACE"}]
YAML
  token=$(k create token $identity --duration=24h)
  k get configmap kube-root-ca.crt -o 'jsonpath={.data.ca\.crt}' >$FILES/cluster-ca.crt
  rm -f $FILES/kubeconfig
  in_file set-cluster here --server=https://kubernetes.default.svc --certificate-authority=$FILES/cluster-ca.crt \
    --embed-certs=true
  in_file set-credentials $identity --token="$token"
  in_file set-context here --cluster=here --user=$identity --namespace="$NAMESPACE"
  in_file use-context here
  secret generic cli-mcp-$INSTANCE-kubeconfig --from-file=kubeconfig=$FILES/kubeconfig
}

# For the Service, and for localhost by way of a port-forward.
make_certificate() {
  if ! k get secret cli-mcp-$INSTANCE-tls >/dev/null 2>&1 || [ ! -f $FILES/server.crt ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 90 -subj /CN=cli-mcp \
      -addext "subjectAltName=DNS:localhost,DNS:cli-mcp-$INSTANCE.$NAMESPACE.svc" \
      -keyout $FILES/server.key -out $FILES/server.crt 2>/dev/null
    secret tls cli-mcp-$INSTANCE-tls --cert=$FILES/server.crt --key=$FILES/server.key
  fi
}

how_to_call() {
  cat <<TEXT

Ready. In one terminal:
  kubectl -n $NAMESPACE port-forward service/cli-mcp-$INSTANCE 8443
and in another:
  kubectl -n $NAMESPACE create token cli-mcp-$INSTANCE-client > $FILES/token
  .venv/bin/cli-mcp call https://localhost:8443 --ca-file $FILES/server.crt --token-file $FILES/token \\
    'kubectl get configmaps; kubectl get secrets; curl -sS https://example.com'
TEXT
}

k() {
  kubectl -n "$NAMESPACE" "$@"
}

in_file() {
  kubectl config --kubeconfig=$FILES/kubeconfig "$@" >/dev/null
}

# secret KIND NAME OPTION...: creates or replaces it.
secret() {
  kubectl -n "$NAMESPACE" create secret "$@" --dry-run=client -o yaml | k apply -f -
}

umask 077
main

#!/bin/bash
# Once an hour, looks for iptables rules in the network namespaces of this node's pods, and creates an Event on each pod
# that has one.

set -u
export LC_ALL=C

root=/host
format='{{.status.metadata.namespace}} {{.status.metadata.name}} {{.status.metadata.uid}} '
format+='{{range .info.runtimeSpec.linux.namespaces}}{{if eq .type "network"}}{{.path}}{{end}}{{end}}{{"\n"}}'

# Runs a program of the node.
on-node() {
  chroot "${root}" "$@"
}

# Prints the first rule in a network namespace. The owner of the pod decides its text, which has to fit into an Event.
first-rule() {
  local save
  for save in iptables-save ip6tables-save; do
    on-node nsenter --net="/run/netns/$1" "${save}" 2>/dev/null
  done | sed -n '/^-A /{p;q;}' | tr -cd '[:print:]' | cut -c -400
}

# Prints namespace, name, UID and network namespace of each pod.
list-pods() {
  local id
  for id in $(on-node crictl pods --quiet --state ready); do
    on-node crictl inspectp --output go-template --template "${format}" "${id}" 2>/dev/null
  done
}

# Creates the Event: report RULE NAMESPACE NAME UID
report() {
  kubectl create --filename - <<EOF
apiVersion: events.k8s.io/v1
kind: Event
metadata:
  generateName: iptables-alert-
  namespace: $2
  labels:
    pod-uid: $4
regarding:
  apiVersion: v1
  kind: Pod
  namespace: $2
  name: $3
  uid: $4
reportingController: openshift.io/iptables-deprecation-alerter
reportingInstance: ${ALERTER_POD_NAME}
action: IPTablesUsageObserved
reason: IPTablesUsageObserved
type: Normal
eventTime: $(date -u +%FT%T.000000Z)
note: |
  This pod appears to have created one or more iptables rules. IPTables is
  deprecated and will no longer be available in RHEL 10 and later. You should
  consider migrating to another API such as nftables or eBPF. See also
  https://access.redhat.com/solutions/6739041

  Example iptables rule seen in this pod:
  $1
EOF
}

scan() {
  local file rule pods="" namespace name uid path events
  for file in "${root}"/run/netns/*; do
    rule=$(first-rule "${file##*/}")
    if [[ -z "${rule}" ]]; then
      continue
    fi
    # Most nodes have no such pod, and need not ask the runtime.
    pods=${pods:-$(list-pods)}
    while read -r namespace name uid path; do
      if [[ -z "${path}" || "${path##*/}" != "${file##*/}" ]]; then
        continue
      fi
      if ! events=$(kubectl get events --namespace "${namespace}" --selector "pod-uid=${uid}" --output name); then
        continue
      fi
      if [[ -z "${events}" ]]; then
        echo "$(date -Iseconds) ${namespace}/${name} has iptables rules"
        report "${rule}" "${namespace}" "${name}" "${uid}"
      fi
    done <<<"${pods}"
  done
}

while true; do
  scan
  sleep 3600
done

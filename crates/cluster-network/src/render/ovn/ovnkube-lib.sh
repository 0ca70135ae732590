#!/bin/bash
# Entry points of the containers of OVN-Kubernetes: ovnkube-lib.sh FUNCTION [FLAG...]
# Settings of a container are in its environment, and the flags of its program are the arguments of the function.

run_dir=/var/run/ovn
conf_file=/etc/cni/net.d/10-ovn-kubernetes.conf
kubeconfig=/etc/ovn/kubeconfig
node_certificate=/etc/ovn/ovnkube-node-certs/ovnkube-client-current.pem
service_account=/var/run/secrets/kubernetes.io/serviceaccount
keys_dir=/var/lib/openvswitch/etc/keys

log() {
  echo "$(date -Iseconds) ${FUNCNAME[1]}: $*"
}

# Sources the lines of ConfigMap env-overrides for a node, or for all control planes (key `_master`).
load-overrides() {
  local file="/env/$1"
  if [[ -f "${file}" ]]; then
    log "sourcing ${file}"
    set -o allexport
    source "${file}"
    set +o allexport
  fi
  if [[ "${OVNKUBE_SH_VERBOSE:-}" == "true" ]]; then
    set -x
  fi
}

# Repeats a command: retry TIMES SECONDS COMMAND...
retry() {
  local times=$1 pause=$2 attempt
  shift 2
  for ((attempt = 1; attempt <= times; attempt++)); do
    if "$@"; then
      return 0
    fi
    log "attempt ${attempt} of ${times} failed: $*"
    sleep "${pause}"
  done
  return 1
}

# Serves metrics to clients that may read them, as soon as there is a certificate: the service that issues it needs the
# network itself.
start-rbac-proxy() {
  local key=/etc/pki/tls/metrics-cert/tls.key certificate=/etc/pki/tls/metrics-cert/tls.crt
  until [[ -f "${key}" && -f "${certificate}" ]]; do
    log "waiting for ${key} and ${certificate}"
    sleep 5
  done
  exec /usr/bin/kube-rbac-proxy --logtostderr --tls-private-key-file="${key}" --tls-cert-file="${certificate}" "$@"
}

# The cluster manager: subnets of nodes and networks.
start-cluster-manager() {
  load-overrides _master
  local interconnect=()
  if /usr/bin/ovnkube --help 2>&1 | grep -q -- --enable-interconnect; then
    interconnect=(--enable-interconnect)
  fi
  exec /usr/bin/ovnkube "${interconnect[@]}" --init-cluster-manager "${K8S_NODE}" \
    --loglevel "${OVN_KUBE_LOG_LEVEL}" "$@"
}

# A kubeconfig by which a node is a user of its own.
write-kubeconfig() {
  load-overrides "${K8S_NODE}"
  mkdir -p "${node_certificate%/*}"
  local host="${KUBERNETES_SERVICE_HOST}"
  if [[ "${host}" == *:* ]]; then
    host="[${host}]"
  fi
  cat >"${kubeconfig}.new" <<EOF
apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    certificate-authority: ${service_account}/ca.crt
    server: https://${host}:${KUBERNETES_SERVICE_PORT}
users:
- name: default
  user:
    client-certificate: ${node_certificate}
    client-key: ${node_certificate}
contexts:
- name: default
  context:
    cluster: default
    user: default
current-context: default
EOF
  mv "${kubeconfig}.new" "${kubeconfig}"
}

start-ovn-controller() {
  load-overrides "${K8S_NODE}"
  local pattern="%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m"
  exec ovn-controller unix:/var/run/openvswitch/db.sock -vfile:off --no-chdir \
    --pidfile="${run_dir}/ovn-controller.pid" --log-file=/var/log/ovn/acl-audit-log.log \
    "-vconsole:${OVN_LOG_LEVEL}" -vconsole:acl_log:off "-vPATTERN:console:${pattern}" \
    -vsyslog:acl_log:info -vfile:acl_log:info "$@"
}

# Prints the audit log of network policies, and renames it when it is larger than MAX_FILE_BYTES. Of renamed files, the
# newest MAX_LOG_FILES are kept; all of them where it is empty.
rotate-acl-log() {
  load-overrides "${K8S_NODE}"
  local file=/var/log/ovn/acl-audit-log.log
  touch "${file}"
  tail -F "${file}" &
  trap 'kill $!; exit 0' TERM
  while true; do
    rotate-acl-log-once "${file}"
    sleep 30 &
    wait $! || true
  done
}

rotate-acl-log-once() {
  local file=$1 size pid
  size=$(stat -c %s "${file}" 2>/dev/null || echo 0)
  if ((size > MAX_FILE_BYTES)); then
    log "${file} has ${size} bytes"
    mv "${file}" "${file%.log}.$(date +%Y%m%d-%H%M%S).log"
    pid=$(cat "${run_dir}/ovn-controller.pid")
    ovn-appctl -t "${run_dir}/ovn-controller.${pid}.ctl" vlog/reopen
  fi
  if [[ -n "${MAX_LOG_FILES}" ]]; then
    ls -1t "${file%.log}".*.log 2>/dev/null | tail -n "+$((MAX_LOG_FILES + 1))" | xargs -r rm -f
  fi
}

start-northd() {
  load-overrides "${K8S_NODE}"
  trap stop-northd TERM
  ovn-northd --no-chdir "-vconsole:${OVN_LOG_LEVEL}" -vfile:off "-vPATTERN:console:%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m" \
    --pidfile "${run_dir}/ovn-northd.pid" --n-threads=1 \
    --ovnnb-db="unix:${run_dir}/ovnnb_db.sock" --ovnsb-db="unix:${run_dir}/ovnsb_db.sock" &
  wait $!
}

stop-northd() {
  if [[ -f "${run_dir}/ovn-northd.pid" ]]; then
    ovn-appctl -t ovn-northd exit
  fi
}

# One database: start-database nb|sb
start-database() {
  local database=$1
  load-overrides "${K8S_NODE}"
  trap "stop-database ${database}" TERM
  rm -f "${run_dir}/ovn${database}_db.pid"
  /usr/share/ovn/scripts/ovn-ctl --no-monitor "--db-${database}-sock=${run_dir}/ovn${database}_db.sock" \
    "--ovn-${database}-log=-vconsole:${OVN_LOG_LEVEL} -vfile:off -vPATTERN:console:%D{%Y-%m-%dT%H:%M:%S.###Z}|%05N|%c%T|%p|%m" \
    "run_${database}_ovsdb" &
  wait $!
}

stop-database() {
  if [[ -f "${run_dir}/ovn$1_db.pid" ]]; then
    ovn-appctl -t "${run_dir}/ovn$1_db.ctl" exit
  fi
}

is-database-ready() {
  ovn-appctl -t "${run_dir}/ovn$1_db.ctl" --timeout=5 ovsdb-server/sync-status | grep -q "state: active"
}

start-nbdb() { start-database nb; }
stop-nbdb() { stop-database nb; }
is-nbdb-ready() { is-database-ready nb; }
start-sbdb() { start-database sb; }
stop-sbdb() { stop-database sb; }
is-sbdb-ready() { is-database-ready sb; }

nbdb-post-start() {
  load-overrides "${K8S_NODE}"
  local options=(
    "name=${K8S_NODE}"
    "options:name=${K8S_NODE}"
    "options:northd-backoff-interval-ms=300"
    "ipsec=${OVN_IPSEC}"
    "options:ipsec_encapsulation=${OVN_IPSEC_ENCAPSULATION}"
  )
  if [[ -n "${OVN_NORTHD_PROBE_INTERVAL:-}" ]]; then
    options+=("options:northd_probe_interval=${OVN_NORTHD_PROBE_INTERVAL}")
  fi
  if [[ -n "${OVN_USE_CT_INV_MATCH:-}" ]]; then
    options+=("options:use_ct_inv_match=${OVN_USE_CT_INV_MATCH}")
  fi
  retry 60 2 ovn-nbctl -t 5 set-connection "punix:${run_dir}/ovnnb_db.sock" -- \
    set connection . "inactivity_probe=${OVN_NB_INACTIVITY_PROBE}" || return 1
  retry 20 2 ovn-nbctl -t 5 set nb_global . "${options[@]}"
}

sbdb-post-start() {
  load-overrides "${K8S_NODE}"
  retry 60 2 ovn-sbctl -t 5 set-connection "punix:${run_dir}/ovnsb_db.sock" -- \
    set connection . "inactivity_probe=${OVN_CONTROLLER_INACTIVITY_PROBE}"
}

# Puts the CNI plugin where the runtime of the node starts it; a plugin that runs meanwhile stays as it is.
install-cni-plugin() {
  cp -f /usr/libexec/cni/ovn-k8s-cni-overlay /cni-bin-dir/ovn-k8s-cni-overlay.new
  mv -f /cni-bin-dir/ovn-k8s-cni-overlay.new /cni-bin-dir/ovn-k8s-cni-overlay
}

# Keeps datagrams of tunnels out of connection tracking.
install-notrack-rules() {
  local port command
  for port in ${OVN_NOTRACK_PORTS}; do
    for command in iptables ip6tables; do
      while "${command}" -t raw -D PREROUTING -p udp --dport "${port}" -j NOTRACK 2>/dev/null; do :; done
      while "${command}" -t raw -D OUTPUT -p udp --dport "${port}" -j NOTRACK 2>/dev/null; do :; done
    done
  done
  {
    echo "add table inet ovn_notrack"
    echo "delete table inet ovn_notrack"
    echo "table inet ovn_notrack {"
    echo "  chain prerouting {"
    echo "    type filter hook prerouting priority raw;"
    for port in ${OVN_NOTRACK_PORTS}; do
      echo "    udp dport ${port} notrack"
    done
    echo "  }"
    echo "  chain output {"
    echo "    type filter hook output priority raw;"
    for port in ${OVN_NOTRACK_PORTS}; do
      echo "    udp dport ${port} notrack"
    done
    echo "  }"
    echo "}"
  } | nft -f -
}

set-forwarding() {
  local value=0
  if [[ "${OVN_IP_FORWARDING}" == "Global" ]]; then
    value=1
  fi
  sysctl -w "net.ipv4.ip_forward=${value}"
  if [[ -d /proc/sys/net/ipv6 ]]; then
    sysctl -w "net.ipv6.conf.all.forwarding=${value}"
  fi
}

start-ovnkube-node() {
  load-overrides "${K8S_NODE}"
  install-cni-plugin || return 1
  local init=(--init-node "${K8S_NODE}")
  if [[ "${OVN_NODE_MODE}" == "dpu-host" ]]; then
    if [[ -n "${OVNKUBE_NODE_MGMT_PORT_NETDEV:-}" ]]; then
      init+=(--ovnkube-node-mgmt-port-netdev "${OVNKUBE_NODE_MGMT_PORT_NETDEV}")
    fi
  else
    install-notrack-rules || return 1
    set-forwarding || return 1
    init+=(--init-ovnkube-controller "${K8S_NODE}")
  fi
  if [[ -n "${OVN_ENCAP_IP:-}" ]]; then
    init+=(--encap-ip "${OVN_ENCAP_IP}")
  fi
  if [[ -d /sys/class/net/br-ex1 ]]; then
    init+=(--exgw-interface=br-ex1)
  fi
  exec /usr/bin/ovnkube "${init[@]}" --zone "${K8S_NODE}" --loglevel "${OVN_KUBE_LOG_LEVEL}" \
    --inactivity-probe="${OVN_CONTROLLER_INACTIVITY_PROBE}" "$@"
}

# Drops ICMP messages of other nodes that packets are too large: on some clouds they carry the wrong size.
drop-icmp() {
  load-overrides "${K8S_NODE}"
  nft -f - <<EOF
add table ip ovn_drop_icmp
delete table ip ovn_drop_icmp
table ip ovn_drop_icmp {
  set nodes {
    type ipv4_addr
  }
  chain input {
    type filter hook input priority raw;
    ip saddr @nodes icmp type destination-unreachable icmp code frag-needed drop
  }
}
EOF
  local addresses address
  while true; do
    addresses=$(kubectl --kubeconfig "${kubeconfig}" get nodes \
      -o 'jsonpath={.items[*].status.addresses[?(@.type=="InternalIP")].address}')
    for address in ${addresses}; do
      if [[ "${address}" != *:* ]]; then
        nft add element ip ovn_drop_icmp nodes "{ ${address} }"
      fi
    done
    sleep 60
  done
}

# A key of this node, and a certificate of it by the cluster's signer.
ipsec-keys() {
  mkdir -p "${keys_dir}"
  local key="${keys_dir}/ipsec-privkey.pem" certificate="${keys_dir}/ipsec-cert.pem" authority="${keys_dir}/ipsec-cacert.pem"
  cp -f /signer-ca/ca-bundle.crt "${authority}" || return 1
  if ! openssl x509 -noout -checkend 15770000 -in "${certificate}" >/dev/null 2>&1; then
    local request="ipsec-csr-$(hostname | tr '[:upper:]' '[:lower:]' | tr -cd 'a-z0-9.-')"
    (umask 077 && openssl genrsa -out "${key}.new" 2048) || return 1
    openssl req -new -sha512 -extensions v3_req -subj "/O=ovn-kubernetes/CN=${K8S_NODE}" \
      -addext "subjectAltName=DNS:${K8S_NODE}" -key "${key}.new" -out "${key}.req" || return 1
    kubectl --kubeconfig "${kubeconfig}" delete --ignore-not-found "csr/${request}"
    kubectl --kubeconfig "${kubeconfig}" create -f - <<EOF || return 1
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata:
  name: ${request}
  labels:
    k8s.ovn.org/ipsec-csr: ${K8S_NODE}
spec:
  request: $(base64 -w 0 <"${key}.req")
  signerName: network.openshift.io/signer
  usages: [ipsec tunnel]
EOF
    retry 60 1 is-signed "${request}" || return 1
    kubectl --kubeconfig "${kubeconfig}" get "csr/${request}" -o 'jsonpath={.status.certificate}' |
      base64 -d >"${certificate}.new" || return 1
    mv -f "${key}.new" "${key}" && mv -f "${certificate}.new" "${certificate}"
    rm -f "${key}.req"
  fi
  ovs-vsctl --retry -t 60 set Open_vSwitch . "other_config:certificate=${certificate}" \
    "other_config:private_key=${key}" "other_config:ca_cert=${authority}"
}

is-signed() {
  local certificate
  certificate=$(kubectl --kubeconfig "${kubeconfig}" get "csr/$1" -o 'jsonpath={.status.certificate}')
  [[ -n "${certificate}" ]]
}

# Renews the certificate before it expires. Runs beside the service.
renew-ipsec-keys() {
  while true; do
    sleep 86400
    ipsec-keys || log "the certificate of this node was not renewed, next attempt in a day"
  done
}

wait-for-network() {
  retry 300 1 test -f "${conf_file}"
}

is-host-ipsec-active() {
  chroot /proc/1/root systemctl is-active --quiet ipsec.service
}

start-ipsec-host() {
  if [[ "${IPSEC_DAEMON_SETS}" == "both" ]] && ! is-host-ipsec-active; then
    log "ipsec.service of the host is not active: the DaemonSet ovn-ipsec-containerized encrypts"
    exec sleep infinity
  fi
  wait-for-network || return 1
  trap 'exit 0' TERM
  renew-ipsec-keys &
  chroot /proc/1/root systemctl restart openvswitch-ipsec.service || return 1
  while true; do
    sleep 3600 &
    wait $!
  done
}

start-ipsec-containerized() {
  if [[ "${IPSEC_DAEMON_SETS}" == "both" ]] && is-unit-enabled; then
    log "ipsec.service of the host is enabled: the DaemonSet ovn-ipsec-host encrypts"
    exec sleep infinity
  fi
  wait-for-network || return 1
  renew-ipsec-keys &
  /usr/libexec/ipsec/addconn --config /etc/ipsec.conf --checkconfig || return 1
  /usr/libexec/ipsec/pluto --leak-detective --config /etc/ipsec.conf --logfile /var/log/openvswitch/libreswan.log
  /usr/share/openvswitch/scripts/ovs-monitor-ipsec --pidfile=/var/run/openvswitch/ovs-monitor-ipsec.pid \
    --ike-daemon=libreswan --no-restart-ike-daemon --log-file=/var/log/openvswitch/ovs-monitor-ipsec.log \
    --monitor unix:/var/run/openvswitch/db.sock &
  trap "kill $!; exit 0" TERM
  wait $!
}

is-unit-enabled() {
  ls /run/systemd/units/invocation:ipsec.service >/dev/null 2>&1
}

# is-ipsec-alive host|containerized
is-ipsec-alive() {
  if [[ "$1" == "host" ]]; then
    [[ "${IPSEC_DAEMON_SETS}" == "both" ]] && ! is-host-ipsec-active && return 0
    chroot /proc/1/root systemctl is-active --quiet openvswitch-ipsec.service
  else
    [[ "${IPSEC_DAEMON_SETS}" == "both" ]] && is-unit-enabled && return 0
    ovs-appctl -t ovs-monitor-ipsec ipsec/status >/dev/null
  fi
}

# Removes what the service left in the configuration of the host when encryption is off.
ipsec-cleanup() {
  trap 'exit-ipsec-cleanup; exit 0' TERM
  while true; do
    sleep 3600 &
    wait $!
  done
}

exit-ipsec-cleanup() {
  rm -f /host-etc/ipsec.d/openshift.conf
}

"$@"

#!/bin/sh
# The CNI plugin of DPUs: no pod gets a network, so that there is nothing to remove.

refuse() {
  printf '{"cniVersion":"0.4.0","code":%s,"msg":"%s","details":"%s"}\n' "$1" "$2" "$3"
  exit 1
}

case "$CNI_COMMAND" in
  ADD) refuse 7 'Not Supported' 'Only host backed pods supported on DPU in Infra Cluster.' ;;
  DEL | GET) ;;
  VERSION) printf '{"cniVersion":"0.4.0","supportedVersions":["0.3.0","0.3.1","0.4.0"]}\n' ;;
  *) refuse 4 'Invalid Configuration' "Unknown cni command: $CNI_COMMAND" ;;
esac

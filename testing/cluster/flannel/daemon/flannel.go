// Package flannel pins flannel's daemon: the pod network is measured beside it (`cargo xtask bench network`).
package flannel

import _ "github.com/flannel-io/flannel"

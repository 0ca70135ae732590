// Package coredns pins CoreDNS with all its plugins: it serves the zone files of the secondary DNS' monitor in a test of the
// tier `api`, the secondary DNS is measured against it (`cargo xtask bench dns`), and it is the cluster's DNS in `cargo xtask conformance`.
package coredns

import (
	_ "github.com/coredns/coredns/core/plugin"
	_ "github.com/coredns/coredns/coremain"
)

// Package coredns pins CoreDNS with all its plugins: the secondary DNS is measured against it (`cargo xtask bench dns`),
// and it is the cluster's DNS in `cargo xtask conformance`.
package coredns

import (
	_ "github.com/coredns/coredns/core/plugin"
	_ "github.com/coredns/coredns/coremain"
)

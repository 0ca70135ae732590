// Pins CoreDNS, which the secondary DNS is measured against, with all its plugins: `cargo xtask bench dns`.
package coredns

import (
	_ "github.com/coredns/coredns/core/plugin"
	_ "github.com/coredns/coredns/coremain"
)

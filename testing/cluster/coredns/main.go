// Program coredns is CoreDNS with the plugins that the tests configure: it serves the zone files of the secondary DNS'
// monitor in a test of the tier `api`, the secondary DNS is measured against it (`cargo xtask bench dns`), and it is the
// cluster's DNS in `cargo xtask conformance`. The other plugins need the libraries of three clouds, which take longer to
// build than the rest.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/auto"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	coremain.Run()
}

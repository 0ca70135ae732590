// Package kubernetes pins Kubernetes' own end-to-end tests beside the programs: `cargo xtask conformance`.
package kubernetes

import (
	_ "k8s.io/kubernetes/test/e2e"
)

// Package flannel pins flannel's CNI plugin in the last release of the reference plugins that contains it: that of its own
// repository is no Go module that the module proxy serves.
package flannel

import _ "github.com/containernetworking/plugins/plugins/meta/flannel"

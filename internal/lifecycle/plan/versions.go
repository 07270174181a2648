package plan

import (
	"k8s.io/apimachinery/pkg/util/version"
)

// minMinor is the oldest minor version of Kubernetes 1 that a cluster may have. Older ones lack
// failCgroupV1 of the kubelet or kube-proxy's nftables mode.
const minMinor = 31

// atLeast reports whether the version actual, such as v3.6.8, is at least the version least, such
// as v3.5. It is false if actual is no version, and panics if least is no version.
func atLeast(actual, least string) bool {
	v, err := version.ParseGeneric(actual)
	if err != nil {
		return false
	}
	return v.AtLeast(version.MustParseGeneric(least))
}

package plan

import (
	"k8s.io/apimachinery/pkg/util/version"
)

// minMinor is the oldest minor of Kubernetes 1 whose components know all that is set here: failCgroupV1 of the kubelet and
// kube-proxy's nftables mode came with it.
const minMinor = 31

// atLeast is true if a version such as v3.6.8 is of a minor such as v3.5 or newer.
func atLeast(actual, least string) bool {
	v, err := version.ParseGeneric(actual)
	if err != nil {
		return false
	}
	return v.AtLeast(version.MustParseGeneric(least))
}

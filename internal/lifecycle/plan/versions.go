package plan

import (
	"k8s.io/apimachinery/pkg/util/version"
)

// minMinor is the oldest minor version of Kubernetes 1 that has all settings used here:
// failCgroupV1 of the kubelet and kube-proxy's nftables mode.
const minMinor = 31

// atLeast reports whether a version such as v3.6.8 is not older than a version such as v3.5.
func atLeast(actual, least string) bool {
	v, err := version.ParseGeneric(actual)
	if err != nil {
		return false
	}
	return v.AtLeast(version.MustParseGeneric(least))
}

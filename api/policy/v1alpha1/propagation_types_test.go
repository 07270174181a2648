package v1alpha1

import "testing"

// TestClusterPurge: deprecated values count as those that replace them, and Gracefully is the
// default.
func TestClusterPurge(t *testing.T) {
	in := func(mode PurgeMode) *FailoverBehavior {
		return &FailoverBehavior{Cluster: &ClusterFailoverBehavior{PurgeMode: mode}}
	}
	for name, tc := range map[string]struct {
		failover *FailoverBehavior
		want     PurgeMode
	}{
		"None":        {nil, PurgeGracefully},
		"Empty":       {&FailoverBehavior{}, PurgeGracefully},
		"Unset":       {in(""), PurgeGracefully},
		"Gracefully":  {in(PurgeGracefully), PurgeGracefully},
		"Graciously":  {in(PurgeGraciously), PurgeGracefully},
		"Directly":    {in(PurgeDirectly), PurgeDirectly},
		"Immediately": {in(PurgeImmediately), PurgeDirectly},
		"Never":       {in(PurgeNever), PurgeNever},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.failover.ClusterPurge(); got != tc.want {
				t.Errorf("purge mode %q, want %q", got, tc.want)
			}
		})
	}
}

package intent_test

import (
	"testing"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
)

// TestLogin: only the login of a host at the same address is replaced, wherever the host is known.
func TestLogin(t *testing.T) {
	old := func(name, address string) clusterv1alpha1.Host {
		return clusterv1alpha1.Host{Name: name, Address: address, Password: "old", InternalAddress: "10.0.0.9", Labels: map[string]string{"rack": "a"}}
	}
	specs := &intent.Specs{
		Applied: &clusterv1alpha1.Provision{Hosts: []clusterv1alpha1.Host{old("a", "1"), old("b", "2")}},
		Wanted:  &clusterv1alpha1.Provision{Hosts: []clusterv1alpha1.Host{old("a", "1")}},
		Begun:   []clusterv1alpha1.Host{old("c", "3")}, Leaving: []clusterv1alpha1.Host{old("d", "4")},
	}
	specs.Login([]clusterv1alpha1.Host{
		{Name: "a", Address: "1", Password: "new", User: "admin", Labels: map[string]string{"rack": "b"}, InternalAddress: "10.0.0.1"},
		{Name: "b", Address: "22", Password: "new"},
		{Name: "c", Address: "3", Password: "new"},
		{Name: "d", Address: "4", Password: "new"},
		{Name: "e", Address: "5", Password: "new"},
	})
	for _, tc := range []struct {
		where, want string
		host        clusterv1alpha1.Host
	}{
		{"applied", "new", specs.Applied.Hosts[0]},
		{"at another address", "old", specs.Applied.Hosts[1]},
		{"wanted", "new", specs.Wanted.Hosts[0]},
		{"begun", "new", specs.Begun[0]},
		{"leaving", "new", specs.Leaving[0]},
	} {
		if tc.host.Password != tc.want || tc.host.InternalAddress != "10.0.0.9" || tc.host.Labels["rack"] != "a" {
			t.Errorf("%s: %+v, want password %s and nothing else", tc.where, tc.host, tc.want)
		}
	}
	if len(specs.Applied.Hosts) != 2 || specs.Applied.Hosts[0].User != "admin" {
		t.Errorf("applied: %+v", specs.Applied.Hosts)
	}
}

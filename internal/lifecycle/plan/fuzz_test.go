package plan_test

import (
	"testing"

	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// FuzzSpec: any spec is either refused or can be planned. After the plan is done, the next plan is
// empty.
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{
		"", "hosts: []", oneHost, highlyAvailable(2),
		oneHost + "network: {kubePodsCIDR: 'fd00::/8,0.0.0.0/0', kubeServiceCIDR: '::/128'}",
		oneHost + "etcd: {type: external, external: {endpoints: ['https://[::1]:1']}}",
		oneHost + "controlPlaneEndpoint: {address: '::ffff:10.0.0.1', port: -1}",
		"hosts: [{name: a, address: '::', internalAddress: ',', bastion: {}}]\nroleGroups: {control-plane: ['a[0:0]', 'n[1:999999999]'], '': [a]}\nkubernetes: {version: v1.99999999999.0}",
		"hosts: [{name: a, address: 10.0.0.1, labels: {'': x}}]\nroleGroups: {control-plane: [a]}\nkubernetes: {version: v1.36.3, kubeletConfiguration: null, kubeProxyConfiguration: {a: null}, nodeCidrMaskSize: -5, maxPods: 2147483647, apiserverArgs: ['=', '--=']}",
		"roleGroups: {etcd: null, worker: ['[1:2]']}\naddons: [{}]\nregistry: {registryMirrors: ['://', '%']}\nsystem: {preInstall: [{}]}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, old := &clusterv1alpha1.Provision{}, &clusterv1alpha1.Provision{}
		if yaml.Unmarshal(text, spec) != nil || yaml.Unmarshal([]byte(oneHost), old) != nil {
			return
		}
		plan.Default("alpha", spec)
		plan.Default("alpha", old)
		plan.ValidateUpdate(old, spec)
		plan.ValidateUpdate(spec, old)
		_ = plan.Leaves("alpha", spec)
		_ = plan.EtcdPeers(spec, []string{"node1"})
		if problems := plan.Validate("alpha", spec); len(problems) > 0 {
			_ = problems.ToAggregate().Error()
			return
		}
		in := inputOf(spec)
		p, err := plan.Make(in)
		if err != nil {
			t.Fatalf("a valid spec has no plan: %v", err)
		}
		plan.Preflight(in)
		if changes := plan.Diff(p, after(in, p), nil); len(changes.Items) > 0 {
			t.Errorf("the plan is done and there is more to do: %v", changes.Items)
		}
	})
}

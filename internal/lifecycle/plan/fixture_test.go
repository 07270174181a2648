package plan_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/pki"
)

// specOf parses a valid spec and sets its defaults.
func specOf(t testing.TB, text string) *clusterv1alpha1.Provision {
	t.Helper()
	spec := looseSpecOf(t, text)
	if problems := plan.Validate("alpha", spec); len(problems) > 0 {
		t.Fatalf("the spec of the test: %v", problems.ToAggregate())
	}
	return spec
}

// looseSpecOf parses a spec, which may be invalid, and sets its defaults.
func looseSpecOf(t testing.TB, text string) *clusterv1alpha1.Provision {
	t.Helper()
	spec := &clusterv1alpha1.Provision{}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	plan.Default("alpha", spec)
	return spec
}

// inputOf returns the input for a spec, with facts of ordinary hosts. Keys and digests are derived
// from names.
func inputOf(spec *clusterv1alpha1.Provision) plan.Input {
	in := plan.Input{
		Name: "alpha", Spec: spec, Facts: map[string]plan.Facts{}, Keys: pki.Bundle{},
		Files: map[string][]catalog.File{}, Digests: map[string]string{},
		Agents: map[string]string{"amd64": "sha256:a9e27", "arm64": "sha256:a9e27"},
		Images: map[string]string{"pause": "registry.k8s.io/pause:3.10.1"},
	}
	for _, h := range spec.Hosts {
		in.Facts[h.Name] = plan.Facts{
			Hostname: h.Name, OS: "debian", OSVersion: "12", Arch: "amd64", Kernel: "6.1.0-13-amd64", CPUs: 2, MemoryBytes: 4 * gib,
			Init: "systemd", CgroupVersion: 2, OOMScoreAdj: true, Tools: []string{"apt-get", "nft", "iptables", "mount"},
		}
	}
	names := slices.Concat(plan.Authorities(), plan.Keys())
	for _, l := range plan.Leaves("alpha", spec) {
		names = append(names, l.Name)
	}
	for _, name := range names {
		in.Keys[name] = pki.KeyPair{Cert: []byte("certificate of " + name + "\n"), Key: []byte("PRIVATE KEY of " + name + "\n")}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		for _, name := range plan.FileNames {
			f := fileOf(name, arch)
			in.Files[arch] = append(in.Files[arch], f)
			in.Digests[f.Key()] = "sha256:" + hashOf(f.Key())
		}
	}
	return in
}

func fileOf(name, arch string) catalog.File {
	f := catalog.File{Name: name, Version: "v1.36.3", Arch: arch, URL: "https://files.example.com/" + name + "-" + arch, Members: map[string]string{"": name}}
	switch name {
	case "etcd":
		f.Version, f.Archive, f.Members = "v3.6.8", "tar.gz", map[string]string{"etcd/etcd": "etcd", "etcd/etcdctl": "etcdctl"}
	case "containerd":
		f.Archive, f.Members = "tar.gz", map[string]string{"bin/containerd": "containerd", "bin/containerd-shim-runc-v2": "containerd-shim-runc-v2"}
	case "cni-plugins":
		f.Archive, f.Members = "tar.gz", map[string]string{"./bridge": "bridge", "./loopback": "loopback"}
	}
	return f
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func planOf(t testing.TB, in plan.Input) *plan.Plan {
	t.Helper()
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// hostOf returns a host of a plan.
func hostOf(t testing.TB, p *plan.Plan, name string) plan.Host {
	t.Helper()
	i := slices.IndexFunc(p.Hosts, func(h plan.Host) bool { return h.Name == name })
	if i < 0 {
		t.Fatalf("the plan has no host %s", name)
	}
	return p.Hosts[i]
}

// stepOf returns a step of a host.
func stepOf(t testing.TB, h plan.Host, id string) plan.Step {
	t.Helper()
	for _, stage := range h.Stages {
		for _, s := range stage.Steps {
			if s.ID == id {
				return s
			}
		}
	}
	t.Fatalf("host %s has no step %s", h.Name, id)
	return plan.Step{}
}

// applied returns the report of a host on which all steps are done.
func applied(h plan.Host) plan.Applied {
	a := plan.Applied{Cluster: "alpha"}
	for _, stage := range h.Stages {
		for _, s := range stage.Steps {
			a.Steps = append(a.Steps, plan.AppliedStep{ID: s.ID, Hash: s.Hash(), Complete: true})
		}
	}
	return a
}

// after returns the facts of all hosts after a plan is done.
func after(in plan.Input, p *plan.Plan) map[string]plan.Facts {
	facts := map[string]plan.Facts{}
	for _, h := range p.Hosts {
		f := in.Facts[h.Name]
		f.Applied = applied(h)
		facts[h.Name] = f
	}
	return facts
}

const oneHost = `
hosts:
- {name: node1, address: 10.0.0.1}
roleGroups:
  control-plane: [node1]
  worker: [node1]
kubernetes: {version: v1.36.3}
`

// highlyAvailable returns a spec with three control planes and some workers.
func highlyAvailable(workers int) string {
	text := "hosts:\n"
	for i := range 3 {
		text += fmt.Sprintf("- {name: cp%d, address: 10.0.0.%d}\n", i+1, i+1)
	}
	for i := range workers {
		text += fmt.Sprintf("- {name: worker%d, address: 10.0.1.%d}\n", i+1, i+1)
	}
	return text + fmt.Sprintf("roleGroups: {control-plane: ['cp[1:3]'], worker: ['worker[1:%d]']}\nkubernetes: {version: v1.36.3}\n", workers)
}

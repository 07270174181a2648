package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/pki"
)

// Make plans a cluster. The same input gives the same plan. Hosts without facts get no plan.
func Make(in Input) (*Plan, error) {
	t, err := resolve(in.Name, in.Spec)
	if err != nil {
		return nil, err
	}
	m := &maker{topology: t, in: in, blobs: map[string]*Blob{}}
	p := &Plan{
		Cluster: in.Name, Version: in.Spec.Kubernetes.Version,
		Endpoint: t.external(), APIServers: t.apiServers(),
	}
	for _, h := range in.Spec.Hosts {
		facts, ok := in.Facts[h.Name]
		if !ok {
			continue
		}
		p.Hosts = append(p.Hosts, m.host(t.members[h.Name], facts))
	}
	for _, digest := range slices.Sorted(maps.Keys(m.blobs)) {
		p.Blobs = append(p.Blobs, *m.blobs[digest])
	}
	return p, errors.Join(m.missing...)
}

// maker makes a plan.
type maker struct {
	*topology

	in    Input
	blobs map[string]*Blob
	// missing lists errors about missing input.
	missing []error
}

// hostMaker makes the plan of a host.
type hostMaker struct {
	*maker
	member

	facts Facts
}

func (m *maker) host(of member, facts Facts) Host {
	h := &hostMaker{maker: m, member: of, facts: facts}
	host := Host{Name: of.Name, Address: of.ip(), Roles: of.roles, Node: of.node()}
	for _, stage := range []Stage{
		{StageSystem, h.system()},
		{StageEtcd, h.etcd()},
		{StageControlPlane, h.controlPlane()},
		{StageNode, h.node()},
	} {
		if len(stage.Steps) > 0 {
			host.Stages = append(host.Stages, stage)
		}
	}
	return host
}

// node returns what the Node must have beside the settings of the kubelet. All labels are here,
// since a kubelet sets labels only when it registers, and must not set those of roles.
func (m member) node() Node {
	if !m.isNode() {
		return Node{}
	}
	labels := map[string]string{}
	if m.has(clusterv1alpha1.RoleControlPlane) {
		labels[labelControlPlane] = ""
	}
	if m.has(clusterv1alpha1.RoleWorker) {
		labels[labelWorker] = ""
	}
	maps.Copy(labels, m.Labels)
	return Node{Labels: labels, Dedicated: m.dedicated()}
}

func (m *maker) lackf(format string, args ...any) {
	m.missing = append(m.missing, fmt.Errorf(format, args...))
}

// pair returns a key pair of the cluster. A missing one is added to missing.
func (m *maker) pair(name string) pki.KeyPair {
	pair, ok := m.in.Keys[name]
	if !ok {
		m.lackf("the keys of cluster %s have no %s", m.name, name)
	}
	return pair
}

// leaf returns a key pair of the host.
func (h *hostMaker) leaf(name string) pki.KeyPair { return h.pair(leafName(h.member, name)) }

// artifact returns the step that installs a file of the catalog, or the members of an archive, in
// dir.
func (h *hostMaker) artifact(name, dir string, d Disruption) Step {
	file, ok := h.file(name)
	if !ok {
		h.lackf("the files for %s have no %s, which host %s needs", h.facts.Arch, name, h.Name)
		return Step{}
	}
	digest := h.in.Digests[file.Key()]
	if digest == "" {
		h.lackf("the digest of %s is not known", file.Key())
	}
	blob := h.blobs[digest]
	if blob == nil {
		blob = &Blob{Digest: digest, URL: file.URL}
		h.blobs[digest] = blob
	}
	blob.Hosts = append(blob.Hosts, h.Name)
	files := make(map[string]string, len(file.Members))
	for member, base := range file.Members {
		files[member] = dir + "/" + base
	}
	return Step{ID: "artifact/" + name, Disruption: d, Artifact: &Artifact{Blob: digest, Archive: file.Archive, Files: files, Mode: "0755"}}
}

func (h *hostMaker) file(name string) (catalog.File, bool) {
	i := slices.IndexFunc(h.in.Files[h.facts.Arch], func(f catalog.File) bool { return f.Name == name })
	if i < 0 {
		return catalog.File{}, false
	}
	return h.in.Files[h.facts.Arch][i], true
}

// kubeconfig returns a file with the credentials of a leaf.
func (h *hostMaker) kubeconfig(id, path, server, user string, client pki.KeyPair, d Disruption) Step {
	content, err := Kubeconfig(h.spec.Kubernetes.ClusterName, server, user, h.pair(AuthorityCluster).Cert, client)
	if err != nil {
		h.missing = append(h.missing, err)
	}
	return secretFile(id, path, content, d)
}

// certificate returns the steps for the files PATH.crt and PATH.key.
func certificate(id, path string, pair pki.KeyPair, d Disruption) []Step {
	return []Step{
		file(id+".crt", path+".crt", pair.Cert, d),
		secretFile(id+".key", path+".key", pair.Key, d),
	}
}

// directory returns a directory that may contain files of others.
func directory(id, path string) Step {
	return Step{ID: id, Directory: &Directory{Path: path, Mode: "0755"}}
}

// dataDirectory returns a directory that only components of the cluster write to.
func dataDirectory(id, path, mode string) Step {
	return Step{ID: id, Directory: &Directory{Path: path, Mode: mode, Owned: true}}
}

func file[T ~string | ~[]byte](id, path string, content T, d Disruption) Step {
	return Step{ID: id, Disruption: d, File: &File{Path: path, Mode: "0644", Content: string(content)}}
}

func secretFile[T ~string | ~[]byte](id, path string, content T, d Disruption) Step {
	return Step{ID: id, Disruption: d, File: &File{Path: path, Mode: "0600", Content: string(content), Secret: true}}
}

// unit returns the unit of a component. A change in one of the steps reads restarts it.
func unit(component string, u Unit, reads ...Step) Step {
	hashes := make([]string, 0, len(reads))
	for _, s := range reads {
		hashes = append(hashes, s.Hash())
	}
	u.InputHash = hash(hashes)
	return Step{ID: component + suffixUnit, Disruption: DisruptionRestart, Unit: &u}
}

// flags are the flags of a program, by name.
type flags map[string]string

// command returns a program with our flags in order and then the user's. A flag of the user
// replaces ours with the same name.
func command(program string, ours flags, users clusterv1alpha1.Args) []string {
	line := []string{binDir + "/" + program}
	taken := map[string]bool{}
	for _, arg := range users {
		name, _, _ := strings.Cut(arg, "=")
		taken[strings.ReplaceAll(name, "_", "-")] = true
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if !taken[name] {
			line = append(line, "--"+name+"="+ours[name])
		}
	}
	for _, arg := range users {
		line = append(line, "--"+arg)
	}
	return line
}

// gates formats feature gates for a flag.
func gates(all map[string]bool) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, fmt.Sprintf("%s=%t", name, all[name]))
	}
	return strings.Join(list, ",")
}

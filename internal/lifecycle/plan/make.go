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

// Make makes the plan of a cluster. The same input always gives the same plan. Hosts without facts
// are left out of it. Make returns an error for an invalid spec. If keys, files or digests are
// missing, it returns the joined errors with an incomplete plan.
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

// maker makes a plan, for Make.
type maker struct {
	*topology

	in    Input
	blobs map[string]*Blob
	// missing lists errors about keys, files and digests that the input lacks.
	missing []error
}

// hostMaker makes the plan of one host, for maker. A method with the name of a component returns
// the steps of that component. Errors about missing input are added to missing, which Make returns.
type hostMaker struct {
	*maker
	member

	facts Facts
}

// host returns the plan of a host from its place in the topology and its facts. Stages without
// steps are left out.
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

// node returns the labels and the taint that the Node of a host must have and a kubelet cannot keep
// up to date. It is empty for a host that is not a node. A kubelet sets labels only when it
// registers, and must not set those of roles.
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

// lackf adds an error about missing input to m.missing. Make returns these errors.
func (m *maker) lackf(format string, args ...any) {
	m.missing = append(m.missing, fmt.Errorf(format, args...))
}

// pair returns the key pair with this name from the input. If the input lacks it, pair adds an
// error to m.missing and returns an empty pair.
func (m *maker) pair(name string) pki.KeyPair {
	pair, ok := m.in.Keys[name]
	if !ok {
		m.lackf("the keys of cluster %s have no %s", m.name, name)
	}
	return pair
}

// leaf returns the key pair of a leaf certificate of the host. name is without HOST/. If the input
// lacks it, leaf adds an error to h.missing and returns an empty pair.
func (h *hostMaker) leaf(name string) pki.KeyPair { return h.pair(leafName(h.member, name)) }

// artifact returns the step that installs a release file, or the programs of an archive, in the
// directory dir of the host. name is the name in the catalog, and d what a later change disturbs.
// artifact adds the file to the files of the plan that the host needs. If the input lacks the file,
// it adds an error to h.missing and returns an empty step.
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

// file returns the release file with this name in the catalog, for the architecture of the host. It
// returns false if there is none.
func (h *hostMaker) file(name string) (catalog.File, bool) {
	i := slices.IndexFunc(h.in.Files[h.facts.Arch], func(f catalog.File) bool { return f.Name == name })
	if i < 0 {
		return catalog.File{}, false
	}
	return h.in.Files[h.facts.Arch][i], true
}

// kubeconfig returns the step for a secret file with a kubeconfig. server is the URL of the API
// server, user the name of the user, and client the user's certificate. d is what a later change of
// the file disturbs.
func (h *hostMaker) kubeconfig(id, path, server, user string, client pki.KeyPair, d Disruption) Step {
	content, err := Kubeconfig(h.spec.Kubernetes.ClusterName, server, user, h.pair(AuthorityCluster).Cert, client)
	if err != nil {
		h.missing = append(h.missing, err)
	}
	return secretFile(id, path, content, d)
}

// certificate returns two steps for a key pair: ID.crt for the file PATH.crt with the certificate,
// and ID.key for the secret file PATH.key. d is what a later change disturbs.
func certificate(id, path string, pair pki.KeyPair, d Disruption) []Step {
	return []Step{
		file(id+".crt", path+".crt", pair.Cert, d),
		secretFile(id+".key", path+".key", pair.Key, d),
	}
}

// directory returns the step for a directory in which other software may have files, too. Undoing
// the step removes the directory only if it is empty.
func directory(id, path string) Step {
	return Step{ID: id, Directory: &Directory{Path: path, Mode: "0755"}}
}

// dataDirectory returns the step for a directory in which only components of the cluster write.
// Undoing the step removes the directory with all its content. mode is octal, such as 0700.
func dataDirectory(id, path, mode string) Step {
	return Step{ID: id, Directory: &Directory{Path: path, Mode: mode, Owned: true}}
}

// file returns the step for a file that everybody may read (mode 0644). d is what a later change of
// the file disturbs.
func file[T ~string | ~[]byte](id, path string, content T, d Disruption) Step {
	return Step{ID: id, Disruption: d, File: &File{Path: path, Mode: "0644", Content: string(content)}}
}

// secretFile returns the step for a file with secret content, which only root may read (mode 0600).
// d is what a later change of the file disturbs.
func secretFile[T ~string | ~[]byte](id, path string, content T, d Disruption) Step {
	return Step{ID: id, Disruption: d, File: &File{Path: path, Mode: "0600", Content: string(content), Secret: true}}
}

// unit returns the step COMPONENT/unit for a systemd unit. reads are the steps for files that the
// process reads only at its start. A change in one of them changes InputHash, and so restarts the
// unit.
func unit(component string, u Unit, reads ...Step) Step {
	hashes := make([]string, 0, len(reads))
	for _, s := range reads {
		hashes = append(hashes, s.Hash())
	}
	u.InputHash = hash(hashes)
	return Step{ID: component + suffixUnit, Disruption: DisruptionRestart, Unit: &u}
}

// flags are flags of a program that Orrery sets: the values by name.
type flags map[string]string

// command returns the command line of a program in binDir: Orrery's flags sorted by name, and then
// the user's arguments. A flag of the user replaces Orrery's flag with the same name. Underscores
// in names of flags count as hyphens.
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

// formatFeatureGates formats feature gates as the value of a flag, such as A=true,B=false, sorted
// by name.
func formatFeatureGates(all map[string]bool) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, fmt.Sprintf("%s=%t", name, all[name]))
	}
	return strings.Join(list, ",")
}

package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// EvenEtcd is the origin (field.Error.Origin) of Validate's error about an even number of etcd
// members. A new cluster must not have one. Callers ignore the error for a cluster that is built,
// which may have an even number after the loss of a member.
const EvenEtcd = "evenEtcd"

// maxClusterName is the maximum length of the name of a cluster.
const maxClusterName = 48

var (
	versionPattern   = regexp.MustCompile(`^v1\.(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})$`)
	packagePattern   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9+._:~=-]*$`)
	registryPattern  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?$|^\[[0-9a-fA-F:]+\](:[0-9]{1,5})?$`)
	namespacePattern = regexp.MustCompile(`^[a-z0-9]+([._/-]+[a-z0-9]+)*$`)
	featurePattern   = regexp.MustCompile(`^[A-Z][a-zA-Z0-9]*$`)
	userPattern      = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.@\\-]*\$?$`)
)

// Validate returns the errors in a spec with defaults, and in the name of its cluster. It needs no
// other data, such as the spec that was applied before. The list is empty for a valid spec. Errors
// do not repeat values that may be secret. With more than maxHosts hosts, it checks only the name
// of the cluster.
func Validate(name string, spec *clusterv1alpha1.Provision) field.ErrorList {
	v := &validator{spec: spec, hosts: map[string]*clusterv1alpha1.Host{}, roles: map[clusterv1alpha1.Role][]string{}}
	root := field.NewPath("spec", "provision")
	for _, problem := range validation.IsDNS1123Label(name) {
		v.add(field.Invalid(field.NewPath("metadata", "name"), name, problem))
	}
	if len(name) > maxClusterName {
		v.add(field.TooLong(field.NewPath("metadata", "name"), name, maxClusterName))
	}
	if len(spec.Hosts) > maxHosts { // too many hosts to check one by one
		return append(v.problems, field.TooMany(root.Child("hosts"), len(spec.Hosts), maxHosts))
	}
	v.validateHosts(root.Child("hosts"))
	v.validateRoles(root.Child("roleGroups"))
	v.validateEndpoint(root.Child("controlPlaneEndpoint"))
	v.validateNetwork(root)
	v.validateKubernetes(root.Child("kubernetes"))
	v.validateEtcd(root)
	v.validatePorts(root)
	v.validateSystem(root.Child("system"))
	v.validateRegistry(root.Child("registry"))
	v.validateAddons(root)
	if spec.Source != "" {
		v.validateURL(root.Child("source"), spec.Source, "http", "https")
	}
	v.oneOf(root.Child("join"), string(spec.Join), string(clusterv1alpha1.Push), string(clusterv1alpha1.Pull))
	v.oneOf(root.Child("deletionPolicy"), string(spec.DeletionPolicy), string(clusterv1alpha1.DeletionOrphan), string(clusterv1alpha1.DeletionDelete))
	return v.problems
}

// validator collects the errors in a spec, for Validate. A method that checks a part of the spec
// adds its errors to problems, with the path p of the field. validateHosts and validateRoles set
// hosts and roles, which later checks use.
type validator struct {
	spec     *clusterv1alpha1.Provision
	hosts    map[string]*clusterv1alpha1.Host
	roles    map[clusterv1alpha1.Role][]string
	problems field.ErrorList
}

func (v *validator) add(problem *field.Error) { v.problems = append(v.problems, problem) }

func (v *validator) invalidf(p *field.Path, value any, format string, args ...any) {
	v.add(field.Invalid(p, value, fmt.Sprintf(format, args...)))
}

// invalidName adds the errors that a check of Kubernetes, such as IsDNS1123Label, returns for the
// name in a field.
func (v *validator) invalidName(p *field.Path, value string, check func(string) []string) {
	for _, problem := range check(value) {
		v.invalidf(p, value, "%s", problem)
	}
}

// oneOf adds an error unless the value is one of those allowed.
func (v *validator) oneOf(p *field.Path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.add(field.NotSupported(p, value, allowed))
	}
}

// bounded adds an error unless the value is from least to most.
func (v *validator) bounded(p *field.Path, value, least, most int64) {
	if value < least || value > most {
		v.invalidf(p, value, "must be from %d to %d", least, most)
	}
}

// port adds an error unless the value is a TCP port.
func (v *validator) port(p *field.Path, value int32) { v.bounded(p, int64(value), 1, 65535) }

// validateURL adds an error unless the value is a URL with one of the schemes, and without a user
// or password.
func (v *validator) validateURL(p *field.Path, value string, schemes ...string) {
	u, err := url.Parse(value)
	if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) || !printable(value) {
		// The value may contain a password, so the error does not repeat it.
		v.invalidf(p, field.OmitValueType{}, "must be a URL that begins with %s://", strings.Join(schemes, ":// or "))
	} else if u.User != nil {
		v.invalidf(p, field.OmitValueType{}, "must not hold a user or password: it is written to logs and to hosts")
	}
}

// validateHosts checks each host, and that hosts have different names and addresses. It sets
// v.hosts.
func (v *validator) validateHosts(p *field.Path) {
	if len(v.spec.Hosts) == 0 {
		v.add(field.Required(p, "name at least one host"))
	}
	reached := map[string]string{}
	internal := map[netip.Addr]string{}
	for i := range v.spec.Hosts {
		h, at := &v.spec.Hosts[i], p.Index(i)
		if _, ok := v.hosts[h.Name]; ok {
			v.add(field.Duplicate(at.Child("name"), h.Name))
		}
		v.hosts[h.Name] = h
		v.validateHost(at, h)
		by := fmt.Sprintf("%s:%d", h.Address, h.Port)
		if h.Bastion != nil {
			by += fmt.Sprintf(" by %s:%d", h.Bastion.Address, h.Bastion.Port)
		}
		if other, ok := reached[by]; ok {
			v.invalidf(at.Child("address"), h.Address, "is the address of host %s too, on the same port: give each host its own, and name each host once", other)
		}
		reached[by] = h.Name
		addresses, err := parseAddresses(h.InternalAddress)
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if other, ok := internal[a]; ok && other != h.Name {
				v.invalidf(at.Child("internalAddress"), h.InternalAddress, "%s is the internal address of host %s too: say at which address the other hosts reach this one", a, other)
			}
			internal[a] = h.Name
		}
	}
}

// validateHost checks the fields of one host.
func (v *validator) validateHost(p *field.Path, h *clusterv1alpha1.Host) {
	v.invalidName(p.Child("name"), h.Name, validation.IsDNS1123Subdomain)
	if len(h.Name) > validation.DNS1123LabelMaxLength {
		v.add(field.TooLong(p.Child("name"), h.Name, validation.DNS1123LabelMaxLength))
	}
	v.validateDialled(p, h.Address, h.Port, h.User)
	if b := h.Bastion; b != nil {
		v.validateDialled(p.Child("bastion"), b.Address, b.Port, b.User)
	}
	v.bounded(p.Child("timeout"), h.Timeout, 1, 600)
	if h.Arch != "" {
		v.oneOf(p.Child("arch"), h.Arch, "amd64", "arm64")
	}
	for _, key := range slices.Sorted(maps.Keys(h.Labels)) {
		v.invalidName(p.Child("labels").Key(key), key, validation.IsQualifiedName)
		v.invalidName(p.Child("labels").Key(key), h.Labels[key], validation.IsValidLabelValue)
	}
	v.validateInternalAddress(p.Child("internalAddress"), h.InternalAddress)
}

// validateInternalAddress checks that the text is one or two IP addresses that other hosts can
// reach. Two addresses must be of different IP families.
func (v *validator) validateInternalAddress(p *field.Path, text string) {
	if text == "" {
		v.add(field.Required(p, "address is a name: say which IP address of the host the others reach"))
		return
	}
	addresses, err := parseAddresses(text)
	if err != nil {
		v.invalidf(p, text, "must be an IP address, or an IPv4 and an IPv6 address with a comma between")
		return
	}
	for _, a := range addresses {
		if a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
			v.invalidf(p, text, "%s cannot be reached by other hosts", a)
		}
	}
	if len(addresses) == 2 && addresses[0].Is4() == addresses[1].Is4() {
		v.invalidf(p, text, "of two addresses one must be IPv4 and the other IPv6")
	}
}

// validateDialled checks the address, port and user with which SSH connects to a host or bastion.
func (v *validator) validateDialled(p *field.Path, address string, port int32, user string) {
	if address == "" {
		v.add(field.Required(p.Child("address"), "say which IP address or DNS name SSH dials"))
	} else if a, err := netip.ParseAddr(address); err == nil {
		if a.IsUnspecified() || a.IsMulticast() {
			v.invalidf(p.Child("address"), address, "is not the address of one host")
		}
	} else if problems := validation.IsDNS1123Subdomain(strings.ToLower(address)); len(problems) > 0 {
		v.invalidf(p.Child("address"), address, "must be an IP address or a DNS name; the port has its own field")
	}
	v.port(p.Child("port"), port)
	if !userPattern.MatchString(user) {
		v.invalidf(p.Child("user"), user, "is not the name of a user")
	}
}

// validateRoles checks the role groups: their names and hosts, that there is a control plane, and
// that each host has a role. It sets v.roles.
func (v *validator) validateRoles(p *field.Path) {
	known := []clusterv1alpha1.Role{clusterv1alpha1.RoleEtcd, clusterv1alpha1.RoleControlPlane, clusterv1alpha1.RoleWorker}
	used := map[string]bool{}
	for _, role := range slices.Sorted(maps.Keys(v.spec.RoleGroups)) {
		at := p.Key(string(role))
		if !slices.Contains(known, role) {
			v.add(field.NotSupported(at, role, known))
			continue
		}
		v.validateGroup(at, role, used)
	}
	if len(v.roles[clusterv1alpha1.RoleControlPlane]) == 0 {
		v.add(field.Required(p.Key(string(clusterv1alpha1.RoleControlPlane)), "name at least one host"))
	}
	for i := range v.spec.Hosts {
		if name := v.spec.Hosts[i].Name; !used[name] {
			v.invalidf(field.NewPath("spec", "provision", "hosts").Index(i).Child("name"), name,
				"has no role: name it in roleGroups, or leave the host out")
		}
	}
}

// validateGroup checks the hosts of one role group. It adds the known hosts to v.roles, and marks
// them in used.
func (v *validator) validateGroup(p *field.Path, role clusterv1alpha1.Role, used map[string]bool) {
	items := v.spec.RoleGroups[role]
	if len(items) > maxHosts {
		v.add(field.TooMany(p, len(items), maxHosts))
		return
	}
	for i, item := range items {
		names, err := expand(item)
		if err != nil {
			v.invalidf(p.Index(i), item, "%v", err)
			continue
		}
		var unknown []string
		for _, name := range names {
			switch {
			case v.hosts[name] == nil:
				unknown = append(unknown, name)
			case slices.Contains(v.roles[role], name):
				v.add(field.Duplicate(p.Index(i), name))
			default:
				v.roles[role] = append(v.roles[role], name)
				used[name] = true
			}
		}
		if len(unknown) > 0 {
			v.invalidf(p.Index(i), item, "is not in hosts: %s; add it there or take it out here", abridged(unknown))
		}
	}
}

// abridged joins names with commas for a message. After five names it only counts the rest.
func abridged(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// validateEndpoint checks where clients reach the control plane. With several control planes, the
// address must not be that of a host.
func (v *validator) validateEndpoint(p *field.Path) {
	e := v.spec.ControlPlaneEndpoint
	v.port(p.Child("port"), e.Port)
	if e.Domain != "" {
		v.invalidName(p.Child("domain"), e.Domain, validation.IsDNS1123Subdomain)
	}
	if e.Address == "" {
		return
	}
	a, err := netip.ParseAddr(e.Address)
	if err != nil {
		v.invalidf(p.Child("address"), e.Address, "must be an IP address; a name goes into domain")
		return
	}
	if !a.IsGlobalUnicast() || a.Zone() != "" {
		v.invalidf(p.Child("address"), e.Address, "cannot be reached by other hosts")
	}
	if len(v.roles[clusterv1alpha1.RoleControlPlane]) < 2 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(v.hosts)) {
		if addresses, err := parseAddresses(v.hosts[name].InternalAddress); err == nil && slices.Contains(addresses, a) {
			v.invalidf(p.Child("address"), e.Address,
				"is host %s: with it the cluster would fail. Leave address unset, and each host balances over all API servers", name)
		}
	}
}

func (v *validator) validateSystem(p *field.Path) {
	s := v.spec.System
	v.oneOf(p.Child("configureOS"), s.ConfigureOS, "Apply", configureSkip)
	v.validatePackages(p.Child("debs"), s.Debs)
	v.validatePackages(p.Child("rpms"), s.Rpms)
	v.validateScripts(p.Child("preInstall"), s.PreInstall)
	v.validateScripts(p.Child("postInstall"), s.PostInstall)
}

func (v *validator) validatePackages(p *field.Path, names []string) {
	for i, name := range names {
		if !packagePattern.MatchString(name) {
			v.invalidf(p.Index(i), name, "is not the name of a package")
		}
	}
}

// validateScripts checks the user's scripts for the hosts.
func (v *validator) validateScripts(p *field.Path, scripts []clusterv1alpha1.Script) {
	seen := map[string]bool{}
	for i, s := range scripts {
		at := p.Index(i)
		v.invalidName(at.Child("name"), s.Name, validation.IsDNS1123Label)
		if seen[s.Name] {
			v.add(field.Duplicate(at.Child("name"), s.Name))
		}
		seen[s.Name] = true
		if strings.TrimSpace(s.Bash) == "" {
			v.add(field.Required(at.Child("bash"), "say what the script does"))
		}
		if strings.ContainsRune(s.Bash+s.Undo, 0) {
			v.invalidf(at, s.Name, "holds a NUL byte")
		}
		if s.Role != "" {
			v.oneOf(at.Child("role"), string(s.Role), string(clusterv1alpha1.RoleEtcd), string(clusterv1alpha1.RoleControlPlane), string(clusterv1alpha1.RoleWorker))
		}
	}
}

func (v *validator) validateRegistry(p *field.Path) {
	r := v.spec.Registry
	for i, mirror := range r.RegistryMirrors {
		v.validateURL(p.Child("registryMirrors").Index(i), mirror, "http", "https")
	}
	for i, host := range r.InsecureRegistries {
		if !registryPattern.MatchString(host) {
			v.invalidf(p.Child("insecureRegistries").Index(i), host, "must be a host, or host:port, without scheme and path")
		}
		if host == dockerHub {
			v.invalidf(p.Child("insecureRegistries").Index(i), host, "has a certificate that everybody can verify: name its mirrors in registryMirrors")
		}
	}
	if r.PrivateRegistry != "" && !registryPattern.MatchString(r.PrivateRegistry) {
		v.invalidf(p.Child("privateRegistry"), r.PrivateRegistry, "must be a host, or host:port, without scheme and path; the path goes into namespaceOverride")
	}
	if r.NamespaceOverride != "" && !namespacePattern.MatchString(r.NamespaceOverride) {
		v.invalidf(p.Child("namespaceOverride"), r.NamespaceOverride, "is not part of the name of an image")
	}
}

// validateAddons checks the add-ons, and the chart of the network.
func (v *validator) validateAddons(root *field.Path) {
	seen := map[string]bool{}
	for i, a := range v.spec.Addons {
		p := root.Child("addons").Index(i)
		v.invalidName(p.Child("name"), a.Name, validation.IsDNS1123Label)
		v.invalidName(p.Child("namespace"), a.Namespace, validation.IsDNS1123Label)
		if seen[a.Name] {
			v.add(field.Duplicate(p.Child("name"), a.Name))
		}
		seen[a.Name] = true
		if (a.Chart != nil) == (len(a.YAML) > 0) {
			v.invalidf(p, a.Name, "exactly one of chart and yaml is needed")
		}
		v.validateChart(p.Child("chart"), a.Chart)
	}
	n := root.Child("network")
	v.validateChart(n.Child("chart"), v.spec.Network.Chart)
	if v.spec.Network.Chart != nil && v.spec.Network.Manifest != "" {
		v.invalidf(n.Child("chart"), v.spec.Network.Chart.Name, "the network has a manifest already: one of both is needed")
	}
}

// validateChart checks where a chart comes from, and its values. c may be nil.
func (v *validator) validateChart(p *field.Path, c *clusterv1alpha1.Chart) {
	if c == nil {
		return
	}
	switch {
	case (c.Path != "") == (c.Repo != ""):
		v.invalidf(p, c.Name, "exactly one of path and repo is needed")
	case c.Repo != "" && c.Name == "":
		v.add(field.Required(p.Child("name"), "say which chart of the repository"))
	case c.Repo != "":
		v.validateURL(p.Child("repo"), c.Repo, "http", "https", "oci")
	}
	if c.Values != nil {
		v.object(p.Child("values"), c.Values.Raw)
	}
}

// cleanAbsolute reports whether p is an absolute path in the form that path.Clean returns, without
// spaces and control characters.
func cleanAbsolute(p string) bool { return path.IsAbs(p) && path.Clean(p) == p && printable(p) }

// printable reports whether a text has no spaces, control characters or invalid UTF-8. These would
// break files and command lines.
func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' })
}

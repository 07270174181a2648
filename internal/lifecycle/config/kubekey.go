package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/strvals"
	"k8s.io/apimachinery/pkg/util/validation"
	sigsjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// tree is a decoded JSON object.
type tree = map[string]any

// parseKubeKey converts KubeKey's Cluster to Orrery's. Each field that requests something is
// converted, or listed in Ignored of the result. others are the other documents of the file, which
// are ignored, too. dir is the directory of the file.
func parseKubeKey(d document, others []document, dir string) (*Read, error) {
	var in struct {
		Metadata tree `json:"metadata"`
		Spec     tree `json:"spec"`
	}
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(d.json, &in); err != nil {
		return nil, fmt.Errorf("line %d: read KubeKey's Cluster: %w", d.line, err)
	}
	if d.name == "" {
		return nil, fmt.Errorf("line %d: metadata.name is missing: give the cluster a name", d.line)
	}
	c := &conversion{dir: dir}
	for _, other := range others {
		c.ignore(fmt.Sprintf("%s %s", other.kind, other.name), "is no Cluster; KubeSphere and what configures it are applied as add-ons")
	}
	spec, _ := c.visit("", "", in.Spec).(tree)
	if spec == nil {
		spec = tree{}
	}
	for _, step := range []func(tree) error{c.refuse, c.roles, c.endpoint, c.system, c.kubernetes, c.etcd, c.auths, c.addons} {
		if err := step(spec); err != nil {
			return nil, fmt.Errorf("line %d: %w", d.line, err)
		}
	}
	c.defaults(spec)
	cluster, err := c.decode(in.Metadata, spec)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", d.line, err)
	}
	resolve(cluster.Spec.Provision, dir)
	slices.Sort(c.ignored)
	return &Read{Cluster: cluster, Ignored: c.ignored, Defaults: c.different}, nil
}

// conversion converts the spec of one KubeKey Cluster, for parseKubeKey. Its methods change the
// spec that they get, and add lines about fields without effect to ignored.
type conversion struct {
	dir     string
	ignored []string
	// different lists fields that are not set and whose default in Orrery differs from that in
	// KubeKey.
	different []string
}

// ignore adds a line about a field without effect, with the reason.
func (c *conversion) ignore(path, reason string) {
	c.ignored = append(c.ignored, path+": "+reason)
}

// visit returns a copy of the parts of a value that the rules keep, and lists the other parts in
// c.ignored. path is the path of the value in the spec, for messages. generic is the same path
// without indices, which selects the rule.
func (c *conversion) visit(generic, path string, value any) any {
	switch value := value.(type) {
	case tree:
		kept := tree{}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			c.field(kept, join(generic, key), join(path, key), key, value[key])
		}
		return kept
	case []any:
		var kept []any
		for i, item := range value {
			kept = append(kept, c.visit(generic+"[]", fmt.Sprintf("%s[%d]", path, i), item))
		}
		return kept
	}
	return value
}

// field visits one field of an object: it adds the field to kept if the rules keep the field or a
// part of it. Otherwise the field has no effect, and is listed in c.ignored if it requests
// something. generic and path are as in visit.
func (c *conversion) field(kept tree, generic, path, key string, value any) {
	r, known := rules[generic]
	switch {
	case known && r.reason != "":
		if asks(value) {
			c.ignore("spec."+path, r.reason)
		}
	case known:
		kept[key] = value
	case within[generic]:
		if under := c.visit(generic, path, value); asks(under) {
			kept[key] = under
		}
	case asks(value):
		c.ignore("spec."+path, "KubeKey has no such field, as far as is known")
	}
}

// join appends a key to a path of a field. path may be "".
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// asks reports whether the value of a field requests something. Empty values, false and 0 do not,
// because Orrery does the same without the field.
func asks(value any) bool {
	switch value := value.(type) {
	case nil:
		return false
	case bool:
		return value
	case string:
		return value != ""
	case int64:
		return value != 0
	case []any:
		return len(value) > 0
	case tree:
		for _, v := range value {
			if asks(v) {
				return true
			}
		}
		return false
	}
	return true
}

// decode decodes the converted spec, and the metadata, as Orrery's Cluster. A field that the
// Cluster does not have is an error.
func (c *conversion) decode(metadata, spec tree) (*clusterv1alpha1.Cluster, error) {
	content, err := json.Marshal(tree{"apiVersion": apiVersion, "kind": kind, "metadata": metadata, "spec": tree{"provision": spec}})
	if err != nil {
		return nil, fmt.Errorf("write the Cluster: %w", err)
	}
	cluster := &clusterv1alpha1.Cluster{}
	unknown, err := sigsjson.UnmarshalStrict(content, cluster)
	if err := errors.Join(append(unknown, plain(err))...); err != nil {
		return nil, fmt.Errorf("read KubeKey's Cluster: %w", err)
	}
	return cluster, nil
}

// defaultDomain is the DNS domain of Services if a file sets none. KubeKey has the same default.
const defaultDomain = "cluster.local"

// defaults lists in c.different the fields that the spec does not set and whose default in Orrery
// differs from that in KubeKey.
func (c *conversion) defaults(spec tree) {
	note := func(path, reason string) { c.different = append(c.different, path+": "+reason) }
	kubernetes, network, etcd := child(spec, "kubernetes"), child(spec, "network"), child(spec, "etcd")
	if !asks(network["plugin"]) {
		note("spec.network.plugin", "flannel is installed, and KubeKey installs calico; set it to choose one, because it cannot change later")
	}
	if !asks(kubernetes["proxyMode"]) && !asks(kubernetes["disableKubeProxy"]) {
		note("spec.kubernetes.proxyMode", "kube-proxy uses nftables, and that of KubeKey ipvs; set it to choose one")
	}
	backups := slices.ContainsFunc(c.ignored, func(line string) bool {
		return strings.HasPrefix(line, "spec.etcd.backup") || strings.HasPrefix(line, "spec.etcd.keepBackupNumber")
	})
	if !backups && etcd["type"] != plan.EtcdExternal {
		note("spec.etcd.backupDir", "etcd is not backed up, and KubeKey does that to /var/backups/kube_etcd; run etcdctl snapshot save by a timer of your own")
	}
}

// refuse returns an error for settings with which Orrery would build another kind of cluster than
// KubeKey.
func (c *conversion) refuse(spec tree) error {
	kubernetes, network := child(spec, "kubernetes"), child(spec, "network")
	if t := take[string](kubernetes, "type"); t != "" && t != "kubernetes" {
		return fmt.Errorf("spec.kubernetes.type: %s is not built: leave it out for kubernetes", t)
	}
	if network["plugin"] == "hybridnet" {
		return errors.New("spec.network.plugin: hybridnet is not installed: use flannel, calico, cilium or kubeovn, or none with an add-on")
	}
	return nil
}

// roles renames role group master to control-plane. It drops role group registry, which is not
// supported yet, and hosts that would only run a registry.
func (c *conversion) roles(spec tree) error {
	groups := child(spec, "roleGroups")
	planes := append(list(groups, "control-plane"), list(groups, "master")...)
	delete(groups, "master")
	if len(planes) > 0 {
		groups["control-plane"] = unique(planes)
	}
	registry := list(groups, "registry")
	delete(groups, "registry")
	if len(registry) == 0 {
		return nil
	}
	c.ignore("spec.roleGroups.registry", toCome+": a registry on a host comes with offline artifacts")
	expanded := map[string][]string{}
	for _, role := range []string{"registry", "etcd", "control-plane", "worker"} {
		asked := map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{}
		items := registry
		if role != "registry" {
			items, _ = groups[role].([]any)
		}
		for _, item := range items {
			if name, ok := item.(string); ok {
				asked["hosts"] = append(asked["hosts"], name)
			}
		}
		names, err := plan.Expand(asked)
		if err != nil {
			return fmt.Errorf("spec.roleGroups.%s: %w", role, err)
		}
		expanded[role] = names["hosts"]
	}
	others := slices.Concat(expanded["etcd"], expanded["control-plane"], expanded["worker"])
	var hosts []any
	for i, item := range list(spec, "hosts") {
		host, _ := item.(tree)
		name, _ := host["name"].(string)
		if slices.Contains(expanded["registry"], name) && !slices.Contains(others, name) {
			c.ignore(fmt.Sprintf("spec.hosts[%d]", i), "the host "+name+" would only run a registry")
			continue
		}
		hosts = append(hosts, item)
	}
	spec["hosts"] = hosts
	return nil
}

// endpoint converts controlPlaneEndpoint. KubeKey writes its domain to /etc/hosts, which Orrery
// never edits. Without externalDNS, the domain is therefore only added to the certificates of API
// servers.
func (c *conversion) endpoint(spec tree) error {
	endpoint := child(spec, "controlPlaneEndpoint")
	balancer, external := take[string](endpoint, "internalLoadbalancer"), take[bool](endpoint, "externalDNS")
	if balancer == "kube-vip" {
		c.ignore("spec.controlPlaneEndpoint.internalLoadbalancer", "no virtual address is run: each host has a load balancer over all API servers")
		if asks(endpoint["address"]) {
			c.ignore("spec.controlPlaneEndpoint.address", "it is kube-vip's; set it to a load balancer that you run")
			delete(endpoint, "address")
		}
	}
	domain := take[string](endpoint, "domain")
	switch {
	case domain == "":
	case external:
		endpoint["domain"] = domain
	default:
		kubernetes := child(spec, "kubernetes")
		kubernetes["apiserverCertExtraSans"] = unique(append(list(kubernetes, "apiserverCertExtraSans"), domain))
		c.ignore("spec.controlPlaneEndpoint.domain", "the API servers' certificate has it, but /etc/hosts is never edited; with externalDNS it is used")
	}
	return nil
}

// notLabel matches the characters that cannot be in a DNS label.
var notLabel = regexp.MustCompile(`[^a-z0-9]+`)

// system converts the scripts. Their names become unique labels, postClusterInstall is put
// before postInstall, and scripts without an interpreter line get that of bash.
func (c *conversion) system(spec tree) error {
	system := child(spec, "system")
	if take[bool](system, "skipConfigureOS") {
		system["configureOS"] = "Skip"
	}
	scripts := list(system, "postClusterInstall")
	if len(scripts) > 0 {
		c.ignore("spec.system.postClusterInstall", "its scripts run with postInstall, when their host is done: the network, DNS and add-ons come later; make an add-on of what needs them")
	}
	if scripts = append(scripts, list(system, "postInstall")...); len(scripts) > 0 {
		system["postInstall"] = scripts
	}
	delete(system, "postClusterInstall")
	for _, key := range []string{"preInstall", "postInstall"} {
		taken := map[string]bool{}
		for i, item := range list(system, key) {
			script, _ := item.(tree)
			if script == nil {
				continue
			}
			name, _ := script["name"].(string)
			name = strings.Trim(notLabel.ReplaceAllString(strings.ToLower(name), "-"), "-")
			if name = strings.TrimRight(name[:min(len(name), 50)], "-"); name == "" || taken[name] {
				name = strings.TrimLeft(fmt.Sprintf("%s-%d", name, i+1), "-")
			}
			taken[name], script["name"] = true, name
			// KubeKey runs scripts with bash. Orrery uses sh unless the first line says otherwise.
			if text, ok := script["bash"].(string); ok && !strings.HasPrefix(text, "#!") {
				script["bash"] = "#!/bin/bash\n" + text
			}
			if script["role"] == "master" {
				script["role"] = "control-plane"
			}
			if script["role"] == "" {
				delete(script, "role")
			}
		}
	}
	return nil
}

// kubernetes converts spec.kubernetes: the form of the version and of arguments, and the name of
// the cluster.
func (c *conversion) kubernetes(spec tree) error {
	kubernetes := child(spec, "kubernetes")
	if version, ok := kubernetes["version"].(string); ok && version != "" && !strings.HasPrefix(version, "v") {
		kubernetes["version"] = "v" + version
	}
	if name, ok := kubernetes["clusterName"].(string); ok && len(validation.IsDNS1123Label(name)) > 0 {
		reason := "it is no DNS label; kubeconfigs have metadata.name"
		if domain, _ := kubernetes["dnsDomain"].(string); domain == "" && name != defaultDomain && len(validation.IsDNS1123Subdomain(name)) == 0 {
			reason += fmt.Sprintf(". The first versions of KubeKey made it the domain of Services, too: set kubernetes.dnsDomain to %s "+
				"if programs use names such as api.shop.svc.%[1]s; the domain is %s otherwise", name, defaultDomain)
		}
		c.ignore("spec.kubernetes.clusterName", reason)
		delete(kubernetes, "clusterName")
	}
	switch manager := take[string](kubernetes, "containerManager"); manager {
	case "", "containerd":
	default:
		c.ignore("spec.kubernetes.containerManager", "containerd runs the containers")
	}
	for _, key := range []string{"apiserverArgs", "controllerManagerArgs", "schedulerArgs", "kubeletArgs", "kubeProxyArgs"} {
		withoutDashes(list(kubernetes, key))
	}
	return nil
}

// withoutDashes removes leading dashes from the arguments, in place.
func withoutDashes(args []any) {
	for i, arg := range args {
		if arg, ok := arg.(string); ok {
			args[i] = strings.TrimLeft(arg, "-")
		}
	}
}

// etcd converts spec.etcd. etcd as a static pod of kubeadm becomes one that Orrery runs.
func (c *conversion) etcd(spec tree) error {
	etcd := child(spec, "etcd")
	withoutDashes(list(etcd, "extraArgs"))
	if etcd["type"] == "kubeadm" {
		c.ignore("spec.etcd.type", "etcd runs as a unit of the hosts in roleGroups.etcd, not as a static pod")
		etcd["type"] = plan.EtcdManaged
	}
	if etcd["type"] != plan.EtcdExternal && !asks(etcd["external"]) {
		delete(etcd, "external")
	}
	return nil
}

// auths converts the settings of registries (registry.auths) to insecureRegistries. Only plainHTTP
// and skipTLSVerify are supported. Other settings are listed as ignored.
func (c *conversion) auths(spec tree) error {
	registry := child(spec, "registry")
	auths, _ := registry["auths"].(tree)
	delete(registry, "auths")
	for _, host := range slices.Sorted(maps.Keys(auths)) {
		auth, _ := auths[host].(tree)
		for _, key := range slices.Sorted(maps.Keys(auth)) {
			switch {
			case !asks(auth[key]):
			case key == "plainHTTP" || key == "skipTLSVerify":
				registry["insecureRegistries"] = unique(append(list(registry, "insecureRegistries"), host))
			default:
				c.ignore(fmt.Sprintf("spec.registry.auths[%s].%s", host, key), toCome+": images are pulled without credentials")
			}
		}
	}
	return nil
}

// addons converts spec.addons: it moves the fields below sources one level up, and reads the flags
// and the file with values of a chart into its values.
func (c *conversion) addons(spec tree) error {
	for i, item := range list(spec, "addons") {
		addon, _ := item.(tree)
		sources, _ := addon["sources"].(tree)
		delete(addon, "sources")
		if paths, _ := sources["yaml"].(tree); asks(paths["path"]) {
			addon["yaml"] = paths["path"]
		}
		chart, _ := sources["chart"].(tree)
		if !asks(chart) {
			continue
		}
		for key, value := range chart {
			if !asks(value) {
				delete(chart, key)
			}
		}
		values, err := c.values(take[string](chart, "valuesFile"), list(chart, "values"))
		if err != nil {
			return fmt.Errorf("spec.addons[%d].sources.chart: %w", i, err)
		}
		delete(chart, "values")
		if len(values) > 0 {
			chart["values"] = values
		}
		addon["chart"] = chart
	}
	return nil
}

// values returns the values of a chart: those in the file, overridden by the flags. file is
// relative to c.dir, and may be "". Each flag is name=value as for Helm's --set.
func (c *conversion) values(file string, flags []any) (tree, error) {
	values := tree{}
	if file != "" {
		if !filepath.IsAbs(file) {
			file = filepath.Join(c.dir, file)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read valuesFile: %w", err)
		}
		if err := yaml.Unmarshal(content, &values); err != nil {
			return nil, fmt.Errorf("read valuesFile %s: %w", file, err)
		}
	}
	for i, flag := range flags {
		text, ok := flag.(string)
		// The error is dropped, because it repeats the value, which may be secret.
		if !ok || strvals.ParseInto(text, values) != nil {
			return nil, fmt.Errorf("values[%d] is not a name=value as Helm's --set takes it", i)
		}
	}
	return values, nil
}

// child returns the object at a key of an object. If the key is missing, it adds an empty object
// there. If the key has a value of another type, that value stays, and child returns a new object
// that is not part of of.
func child(of tree, key string) tree {
	if under, ok := of[key].(tree); ok {
		return under
	}
	under := tree{}
	if _, ok := of[key]; !ok {
		of[key] = under
	}
	return under
}

// list returns the list at a key of an object, or nil if there is no list.
func list(of tree, key string) []any {
	items, _ := of[key].([]any)
	return items
}

// take removes the value at a key of an object and returns it. It returns the zero value if the key
// is missing. A value of another type is not removed, so that decoding the Cluster fails later.
func take[T any](of tree, key string) T {
	value, ok := of[key].(T)
	if ok || of[key] == nil {
		delete(of, key)
	}
	return value
}

// unique returns the items in their order, without repetitions, in a new slice.
func unique(items []any) []any {
	var kept []any
	for _, item := range items {
		if !slices.Contains(kept, item) {
			kept = append(kept, item)
		}
	}
	return kept
}

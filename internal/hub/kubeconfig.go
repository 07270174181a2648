package hub

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/pki"
)

// Contexts of the user's kubeconfig, besides those of the members.
const (
	hubContext   = "hub"
	fleetContext = "fleet"
	// qualifiedContext is the context of the fleet for programs. Its names of objects include the name
	// of the cluster.
	qualifiedContext = "fleet-qualified"
)

// controllerManagerKubeconfig returns the path of the kubeconfig for kube-controller-manager.
func (d dataDir) controllerManagerKubeconfig() string {
	return d.path(controllerManagerProcess + ".kubeconfig")
}

// writeControllerManagerKubeconfig writes the kubeconfig with which kube-controller-manager reaches
// the API server at the URL server. It refers to the certificate files, which the client reads
// again when they change.
func (d dataDir) writeControllerManagerKubeconfig(server string) error {
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{hubContext: {Server: server, CertificateAuthority: d.authority(serverCA)}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{hubContext: {
			ClientCertificate: d.leaf(controllerManagerCert), ClientKey: d.leaf(controllerManagerCert),
		}},
		Contexts:       map[string]*clientcmdapi.Context{hubContext: {Cluster: hubContext, AuthInfo: hubContext}},
		CurrentContext: hubContext,
	})
	if err != nil {
		return fmt.Errorf("encode kubeconfig of %s: %w", controllerManagerProcess, err)
	}
	return writeFile(d.controllerManagerKubeconfig(), text)
}

// access returns the cluster and the user for the user's kubeconfig, with the credentials in them.
// With an existing API server they come from its kubeconfig; else the user has the administrator's
// certificate.
func access(o Options, d dataDir) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	if o.external() {
		return externalAccess(o.Kubeconfig)
	}
	ca, err := os.ReadFile(d.authority(serverCA))
	if err != nil {
		return nil, nil, fmt.Errorf("read server CA: %w", err)
	}
	text, err := os.ReadFile(d.leaf(adminCert))
	if err != nil {
		return nil, nil, fmt.Errorf("read administrator's certificate: %w", err)
	}
	admin := pki.Split(text)
	return &clientcmdapi.Cluster{Server: o.serverURL(), CertificateAuthorityData: ca},
		&clientcmdapi.AuthInfo{ClientCertificateData: admin.Cert, ClientKeyData: admin.Key}, nil
}

// externalAccess returns the cluster and the user of the current context in a kubeconfig file, for
// another kubeconfig. Files that they name become content or absolute paths.
func externalAccess(path string) (*clientcmdapi.Cluster, *clientcmdapi.AuthInfo, error) {
	config, err := loadExternal(path)
	if err != nil {
		return nil, nil, err
	}
	// Files that the kubeconfig names become content or absolute paths, so that the result works in
	// another directory.
	err = errors.Join(clientcmdapi.MinifyConfig(config), clientcmdapi.FlattenConfig(config))
	if err != nil {
		return nil, nil, fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	context := config.Contexts[config.CurrentContext]
	cluster, user := config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
	cluster.LocationOfOrigin, user.LocationOfOrigin = "", ""
	return cluster, user, nil
}

// loadExternal reads the kubeconfig of --kubeconfig, and makes the paths in it absolute. It is an
// error if the file does not exist or its current context is not usable.
func loadExternal(path string) (*clientcmdapi.Config, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(config)
	}
	if err == nil {
		err = clientcmd.ConfirmUsable(*config, "")
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	return config, nil
}

// WriteKubeconfig writes the kubeconfig of the user. It has the contexts hub, fleet (all clusters),
// fleet-qualified, and one for each member, through the proxy of the hub. members are the names of
// all members. A member with the name of one of the first three contexts has the context
// member/NAME. The current context and the namespace of each context are kept, as the user has set
// them. Other changes by users are lost.
func (h *Hub) WriteKubeconfig(members []string) error {
	h.kubeconfigMu.Lock()
	defer h.kubeconfigMu.Unlock()
	h.members = slices.Clone(members)
	return h.writeKubeconfig()
}

// writeKubeconfig writes the kubeconfig of the user, with a context for each of h.members. The
// caller holds kubeconfigMu.
func (h *Hub) writeKubeconfig() error {
	cluster, user, err := access(h.options, h.dir)
	if err != nil {
		return err
	}
	old, err := readKubeconfig(h.dir.kubeconfig())
	if err != nil {
		return err
	}
	text, err := clientcmd.Write(*userKubeconfig(cluster, user, h.members, old))
	if err != nil {
		return fmt.Errorf("encode kubeconfig: %w", err)
	}
	return writeFile(h.dir.kubeconfig(), text)
}

// userKubeconfig returns the kubeconfig that WriteKubeconfig writes: contexts for the hub, the
// fleet and the members, with the server of cluster and the credentials of user. The current
// context and the namespaces come from old.
func userKubeconfig(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, members []string, old *clientcmdapi.Config) *clientcmdapi.Config {
	const userName = "hub-admin"
	config := clientcmdapi.NewConfig()
	config.AuthInfos[userName] = user
	add := func(name, path string) {
		c := cluster.DeepCopy()
		c.Server = strings.TrimSuffix(c.Server, "/") + path
		config.Clusters[name] = c
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: userName}
		if kept, ok := old.Contexts[name]; ok {
			config.Contexts[name].Namespace = kept.Namespace
		}
	}
	add(hubContext, "")
	add(fleetContext, fleetv1alpha1.FleetPath)
	add(qualifiedContext, fleetv1alpha1.QualifiedPath)
	for _, name := range members {
		add(memberContext(name), fleetv1alpha1.ClustersPath+"/"+name+"/proxy")
	}
	config.CurrentContext = hubContext
	if _, ok := config.Contexts[old.CurrentContext]; ok {
		config.CurrentContext = old.CurrentContext
	}
	return config
}

// memberContext returns the name of a member's context in the kubeconfig of the user: the member's
// name, or member/NAME if another context has that name.
func memberContext(member string) string {
	if member == hubContext || member == fleetContext || member == qualifiedContext {
		return "member/" + member
	}
	return member
}

// readKubeconfig returns the kubeconfig that an earlier run has written at path. It returns an
// empty one if the file does not exist or is invalid. Only a file that cannot be read is an error.
func readKubeconfig(path string) (*clientcmdapi.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config, err := clientcmd.Load(bytes.TrimSpace(text))
	if err != nil {
		// The hub owns the file, and writes all of it except the settings of the user.
		return clientcmdapi.NewConfig(), nil //nolint:nilerr // see above
	}
	return config, nil
}

// knownMembers returns the names of the members in config, the kubeconfig of an earlier run,
// sorted. At a start, they keep their contexts until the hub has read its Clusters.
func knownMembers(config *clientcmdapi.Config) []string {
	var members []string
	for _, c := range config.Clusters {
		_, path, _ := strings.Cut(c.Server, fleetv1alpha1.ClustersPath+"/")
		if name, ok := strings.CutSuffix(path, "/proxy"); ok {
			members = append(members, name)
		}
	}
	slices.SortFunc(members, cmp.Compare[string])
	return members
}

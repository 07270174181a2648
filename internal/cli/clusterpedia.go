package cli

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
)

// This file converts objects of Clusterpedia, for "orrery migrate clusterpedia". Its functions send
// no requests: migrate.go reads the objects, sends requests to the clusters and writes the results.

var (
	pediaClusters      = schema.GroupVersionKind{Group: "cluster.clusterpedia.io", Version: "v1alpha2", Kind: "PediaCluster"}
	pediaSyncResources = schema.GroupVersionKind{Group: "cluster.clusterpedia.io", Version: "v1alpha2", Kind: "ClusterSyncResources"}
	// pediaOthers are kinds of Clusterpedia without an equivalent in Orrery; they are only reported.
	pediaOthers = []schema.GroupVersionKind{
		{Group: "policy.clusterpedia.io", Version: "v1alpha1", Kind: "ClusterImportPolicy"},
		{Group: "policy.clusterpedia.io", Version: "v1alpha1", Kind: "PediaClusterLifecycle"},
	}
)

const (
	// annotationMigrated is an annotation of a Cluster or MirrorPolicy that a migration created:
	// "migrate.orrery.dev/from". Its value names the object of Clusterpedia as KIND/NAME/UID.
	annotationMigrated = "migrate.orrery.dev/from"
	// labelSyncResources is a label of Clusters whose PediaCluster refers to a ClusterSyncResources:
	// "migrate.orrery.dev/sync-resources". Its value is the name of that ClusterSyncResources.
	labelSyncResources = "migrate.orrery.dev/sync-resources"
	// annotationTaken is an annotation of a Cluster: "migrate.orrery.dev/taken". It has the digests of
	// address, authority and credentials as the last migration took them from the PediaCluster, in
	// JSON. A part whose digest differs has changed in Clusterpedia since.
	annotationTaken = "migrate.orrery.dev/taken"
)

// pediaCluster has those fields of a PediaCluster, Clusterpedia's object for a cluster, that a
// migration uses.
type pediaCluster struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Kubeconfig         []byte `json:"kubeconfig"`
		APIServer          string `json:"apiserver"`
		TokenData          []byte `json:"tokenData"`
		CAData             []byte `json:"caData"`
		CertData           []byte `json:"certData"`
		KeyData            []byte `json:"keyData"`
		AuthenticationFrom *struct {
			Kubeconfig *pediaKey `json:"kubeconfig"`
			Token      *pediaKey `json:"token"`
			CA         *pediaKey `json:"ca"`
			Cert       *pediaKey `json:"cert"`
			Key        *pediaKey `json:"key"`
		} `json:"authenticationFrom"`
		SyncResources          []pediaResources `json:"syncResources"`
		SyncAllCustomResources bool             `json:"syncAllCustomResources"`
		SyncResourcesRefName   string           `json:"syncResourcesRefName"`
		ShardingName           string           `json:"shardingName"`
	} `json:"spec"`
}

// pediaSync has those fields of a ClusterSyncResources, a list of types that several PediaClusters
// share, that a migration uses.
type pediaSync struct {
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		SyncResources []pediaResources `json:"syncResources"`
	} `json:"spec"`
}

// pediaKey refers to one key of a Secret, with credentials of a PediaCluster.
type pediaKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// pediaResources are types of one group that Clusterpedia synchronizes.
type pediaResources struct {
	Group     string   `json:"group"`
	Versions  []string `json:"versions"`
	Resources []string `json:"resources"`
	Events    []string `json:"eventsInvolvedResources"`
}

// readPedia decodes an object of Clusterpedia into a pointer to pediaCluster or pediaSync. The
// error contains no values of fields, because some are credentials.
func readPedia(u *unstructured.Unstructured, into any) error {
	raw, err := u.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return fmt.Errorf("read %s %s: a field has another type than in Clusterpedia's API: correct the object (no value is shown, since some are credentials)", u.GetKind(), u.GetName())
	}
	return nil
}

// migrated is a row of a migration's report: what becomes of one object of Clusterpedia.
type migrated struct {
	From string `json:"from"`         // KIND/NAME
	To   string `json:"to,omitempty"` // KIND/NAME; "": no object is created
	// Action is what the migration does; in a dry run, what it would do.
	Action string   `json:"action"`
	Taken  []string `json:"taken,omitempty"`  // the parts that are taken over
	Notes  []string `json:"notes,omitempty"`  // what is not taken over, or differs, and why
	Object any      `json:"object,omitempty"` // without credentials
}

// The values of migrated.Action.
const (
	migrateCreate  = "create"
	migrateKeep    = "keep"  // an earlier run created the object
	migrateRenew   = "renew" // as migrateKeep, but changed access data is taken from Clusterpedia
	migrateLeave   = "leave out"
	secretsCaution = "of Secrets the metadata is mirrored; where their data was asked for, select secrets by themselves with secretData: Encrypted"
)

// origin returns the value of annotationMigrated for an object of a kind: KIND/NAME/UID.
func origin(kind string, m *metav1.ObjectMeta) string {
	return kind + "/" + m.Name + "/" + string(m.UID)
}

// ofPattern matches a group or a resource that spec.mirror of a Cluster accepts; * means all.
var ofPattern = regexp.MustCompile(`^(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$`)

// mirrorOf converts the types that Clusterpedia synchronizes to the types that Orrery mirrors. out
// is nil if no type remains. notes has sentences for the user about types that are left out or
// changed, without duplicates.
func mirrorOf(from []pediaResources) (out []clusterv1alpha1.MirrorResources, notes []string) {
	note := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(notes, text) {
			notes = append(notes, text)
		}
	}
	events := false
	for _, r := range from {
		one := clusterv1alpha1.MirrorResources{Group: r.Group}
		if r.Group != "" && !ofPattern.MatchString(r.Group) {
			note("syncResources: group %q is no group: left out", r.Group)
			continue
		}
		for _, resource := range r.Resources {
			switch {
			case !ofPattern.MatchString(resource):
				note("syncResources: %q of group %q is no resource in plural and small letters: left out", resource, r.Group)
			case !slices.Contains(one.Resources, resource):
				one.Resources = append(one.Resources, resource)
			}
		}
		if slices.Contains(one.Resources, "*") {
			one.Resources = []string{"*"}
		}
		for _, v := range r.Versions {
			if !slices.Contains(one.Versions, v) {
				one.Versions = append(one.Versions, v)
			}
		}
		if r.Group == "*" && one.Versions != nil {
			note("syncResources: group * has no versions of its own: those that clusters prefer are mirrored")
			one.Versions = nil
		}
		if len(one.Versions) > 1 {
			note("syncResources: of several versions one is mirrored, the first that a cluster serves; other versions of custom resources are not to be had")
		}
		if one.Resources == nil {
			continue
		}
		core := r.Group == "" || r.Group == "*"
		events = events || core && slices.ContainsFunc(one.Resources, func(s string) bool { return s == "*" || s == "events" })
		if core && slices.ContainsFunc(one.Resources, func(s string) bool { return s == "*" || s == "secrets" }) {
			note(secretsCaution)
		}
		out = append(out, one)
	}
	if slices.ContainsFunc(from, func(r pediaResources) bool { return len(r.Events) > 0 }) {
		note("eventsInvolvedResources: Events are objects of their own, of everything: ask for events with fieldSelector=involvedObject.uid=UID")
		if !events {
			out = append(out, clusterv1alpha1.MirrorResources{Resources: []string{"events"}})
		}
	}
	return out, notes
}

// policyOf returns the MirrorPolicy for a ClusterSyncResources, with its row of the report. The
// policy selects the Clusters by labelSyncResources. If s selects no types, the policy is nil and
// the action is migrateLeave. A name that is too long for the value of a label is an error.
func policyOf(s *pediaSync) (*configv1alpha1.MirrorPolicy, migrated, error) {
	m := migrated{From: "ClusterSyncResources/" + s.Name, Action: migrateCreate}
	if len(s.Name) > 63 {
		return nil, m, fmt.Errorf("%s: its name has more than 63 characters, and is to be the value of a label; give it another in Clusterpedia", m.From)
	}
	resources, notes := mirrorOf(s.Spec.SyncResources)
	m.Notes = notes
	if resources == nil {
		m.Action, m.Notes = migrateLeave, append(m.Notes, "it selects nothing")
		return nil, m, nil
	}
	p := &configv1alpha1.MirrorPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: configv1alpha1.GroupVersion.String(), Kind: "MirrorPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: "clusterpedia-" + s.Name, Annotations: map[string]string{annotationMigrated: origin("ClusterSyncResources", &s.ObjectMeta)}},
		Spec: configv1alpha1.MirrorPolicySpec{
			ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelSyncResources: s.Name}},
			Mirror:          clusterv1alpha1.Mirror{Resources: resources},
		},
	}
	m.To, m.Taken = "MirrorPolicy/"+p.Name, []string{"syncResources, for the Clusters with the label " + labelSyncResources + "=" + s.Name}
	m.Object = p
	return p, m, nil
}

// clusterOf returns spec.mirror and the labels of the Cluster for a PediaCluster, with its row of
// the report. shared is the ClusterSyncResources that c refers to; nil: none. mirror is nil if only
// shared selects types, because its MirrorPolicy then says what is mirrored. If neither selects a
// type, mirror excludes all types.
func clusterOf(c *pediaCluster, shared *pediaSync) (mirror *clusterv1alpha1.Mirror, labels map[string]string, m migrated) {
	m = migrated{From: "PediaCluster/" + c.Name, To: "Cluster/" + c.Name, Action: migrateCreate}
	labels = map[string]string{}
	for key, value := range c.Labels {
		if strings.Contains(key, "clusterpedia.io/") {
			m.Notes = append(m.Notes, "label "+key+" is Clusterpedia's own: left out")
			continue
		}
		labels[key] = value
	}
	if len(labels) > 0 {
		m.Taken = append(m.Taken, "labels")
	}
	spec := &c.Spec
	resources, notes := mirrorOf(spec.SyncResources)
	m.Notes = append(m.Notes, notes...)
	mirror = &clusterv1alpha1.Mirror{Resources: resources}
	if resources != nil {
		m.Taken = append(m.Taken, "syncResources as spec.mirror.resources")
	}
	if spec.SyncAllCustomResources {
		mirror.CustomResources = clusterv1alpha1.MirrorCustomResourcesAll
		m.Taken = append(m.Taken, "syncAllCustomResources as spec.mirror.customResources")
	}
	if spec.SyncResourcesRefName != "" {
		labels[labelSyncResources] = spec.SyncResourcesRefName
		m.Taken = append(m.Taken, "syncResourcesRefName as the label "+labelSyncResources)
	}
	if resources == nil && !spec.SyncAllCustomResources {
		selected := false // the MirrorPolicy selects a type
		if mirror = nil; shared != nil {
			of, _ := mirrorOf(shared.Spec.SyncResources)
			selected = of != nil
		}
		if !selected {
			mirror = &clusterv1alpha1.Mirror{Exclude: []clusterv1alpha1.MirrorExclusion{{Group: "*", Resources: []string{"*"}}}}
			m.Notes = append(m.Notes, "it synchronizes nothing, so spec.mirror excludes everything; take that away to mirror what is usual")
		}
	}
	if spec.ShardingName != "" {
		m.Notes = append(m.Notes, "shardingName: there is one server for all clusters: left out")
	}
	return mirror, labels, m
}

// credentialsOf returns a kubeconfig for the cluster of a PediaCluster. Like Clusterpedia, it takes
// the credentials from the fields of c, or else from Secrets, whose keys it reads with secret. A
// kubeconfig that refers to files is an error. Errors and notes for the user contain no
// credentials. With an error the other results must not be used.
func credentialsOf(c *pediaCluster, secret func(pediaKey) ([]byte, error)) (kubeconfig []byte, notes []string, err error) {
	spec := &c.Spec
	token, ca, cert, key := spec.TokenData, spec.CAData, spec.CertData, spec.KeyData
	kubeconfig = spec.Kubeconfig
	from := spec.AuthenticationFrom
	if len(kubeconfig) == 0 && len(token) == 0 && (len(cert) == 0 || len(key) == 0) && from != nil {
		for _, one := range []struct {
			from *pediaKey
			to   *[]byte
		}{{from.Kubeconfig, &kubeconfig}, {from.Token, &token}, {from.CA, &ca}, {from.Cert, &cert}, {from.Key, &key}} {
			if one.from == nil {
				continue
			}
			if *one.to, err = secret(*one.from); err != nil {
				return nil, nil, err
			}
		}
	}
	if len(kubeconfig) > 0 {
		return kubeconfig, nil, ownFiles(kubeconfig)
	}
	switch {
	case spec.APIServer == "":
		return nil, nil, errors.New("it has neither a kubeconfig nor an apiserver: its credentials cannot be read")
	case len(token) == 0 && (len(cert) == 0 || len(key) == 0):
		return nil, nil, errors.New("it has an apiserver, but neither a token nor a certificate with its key")
	}
	server := spec.APIServer
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	const name = "migrated"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca, InsecureSkipTLSVerify: len(ca) == 0}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: string(token), ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	if len(ca) == 0 {
		notes = append(notes, "it has no certificate of an authority, so that of its API server is not verified, as before: set caData in Clusterpedia and run this again, or run orrery cluster join "+c.Name+" with a kubeconfig that has certificate-authority-data")
	}
	kubeconfig, err = clientcmd.Write(*config)
	if err != nil {
		err = errors.New("its credentials cannot be written as a kubeconfig")
	}
	return kubeconfig, notes, err
}

// access is a parsed kubeconfig: how a cluster is reached. server and user are those of its current
// context; they point into config, so a change of them changes the kubeconfig.
type access struct {
	config *clientcmdapi.Config
	server *clientcmdapi.Cluster
	user   *clientcmdapi.AuthInfo
}

// accessOf parses a kubeconfig. It is an error if the kubeconfig is invalid or has no current
// context with a cluster and a user. The error contains no credentials.
func accessOf(kubeconfig []byte) (*access, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.New("its kubeconfig cannot be read")
	}
	a := &access{config: config}
	if at := config.Contexts[config.CurrentContext]; at != nil {
		a.server, a.user = config.Clusters[at.Cluster], config.AuthInfos[at.AuthInfo]
	}
	if a.server == nil || a.user == nil {
		return nil, errors.New("its kubeconfig has no current-context that names a cluster and a user: set it")
	}
	return a, nil
}

// The parts of an access. A repeated migration replaces those that have changed in Clusterpedia.
const (
	partAddress     = "address"               // server and tls-server-name
	partAuthority   = "certificate authority" // and whether the certificate of the server is verified
	partCredentials = "credentials"           // token, certificate and key, and the proxy
)

// digests returns a digest of each part of a, by the name of the part, for annotationTaken: an
// HMAC-SHA256 in hexadecimal. The key is the UID of the PediaCluster, so that equal credentials of
// two clusters have different digests. Values that could be guessed from their digest, such as the
// password of a proxy, are in one digest with the credentials.
func (a *access) digests(key string) map[string]string {
	digest := func(values ...string) string {
		h := hmac.New(sha256.New, []byte(key))
		for _, v := range values {
			h.Write([]byte(strconv.Quote(v)))
		}
		return hex.EncodeToString(h.Sum(nil))
	}
	s, u := a.server, a.user
	return map[string]string{
		partAddress:     digest(s.Server, s.TLSServerName),
		partAuthority:   digest(strconv.FormatBool(s.InsecureSkipTLSVerify), string(s.CertificateAuthorityData)),
		partCredentials: digest(u.Token, string(u.ClientCertificateData), string(u.ClientKeyData), s.ProxyURL),
	}
}

// keep restores in a all parts but those in changed, because a user may have changed them since the
// last migration. Their values come from the spec of a Cluster and the data of its Secret. If the
// Cluster verifies TLS, a part that does not is restored as well.
func (a *access) keep(spec *clusterv1alpha1.ClusterSpec, secret map[string][]byte, changed []string) {
	if !slices.Contains(changed, partAddress) {
		a.server.Server, a.server.TLSServerName = spec.APIEndpoint, spec.TLSServerName
	}
	verified := spec.TLSVerification != clusterv1alpha1.TLSSkip
	if !slices.Contains(changed, partAuthority) || a.server.InsecureSkipTLSVerify && verified {
		a.server.InsecureSkipTLSVerify, a.server.CertificateAuthorityData = !verified, secret[corev1.ServiceAccountRootCAKey]
	}
	if !slices.Contains(changed, partCredentials) {
		a.server.ProxyURL = spec.ProxyURL
		*a.user = clientcmdapi.AuthInfo{
			Token: string(secret[corev1.ServiceAccountTokenKey]), ClientCertificateData: secret[corev1.TLSCertKey], ClientKeyData: secret[corev1.TLSPrivateKeyKey],
		}
	}
}

// ownFiles returns an error if a kubeconfig refers to files. Those are on the machine of another
// installation. A file of this machine with the same path must not be sent to its cluster.
func ownFiles(kubeconfig []byte) error {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return errors.New("its kubeconfig cannot be read")
	}
	for _, c := range config.Clusters {
		if c.CertificateAuthority != "" {
			return errors.New("its kubeconfig names a file, certificate-authority: put the content into certificate-authority-data")
		}
	}
	for _, u := range config.AuthInfos {
		if path := cmp.Or(u.ClientCertificate, u.ClientKey, u.TokenFile); path != "" {
			return errors.New("its kubeconfig names a file, client-certificate, client-key or tokenFile: put the content into client-certificate-data, client-key-data or token")
		}
	}
	return nil
}

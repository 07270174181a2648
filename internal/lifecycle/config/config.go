// Package config reads and writes files that describe clusters. It reads Orrery's Cluster,
// strictly, and KubeKey's Cluster. It writes a commented template, and the file for a new cluster
// like a running one.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

const (
	apiVersion    = "cluster.orrery.dev/v1alpha1"
	kind          = "Cluster"
	kubekeyGroup  = "kubekey.kubesphere.io/"
	provisionPath = "spec.provision"
)

// Read is a cluster that Parse has read from a file.
type Read struct {
	Cluster *clusterv1alpha1.Cluster
	// Ignored lists the fields of KubeKey's Cluster that have no effect here, each as
	// "spec.kubernetes.kata: reason".
	Ignored []string
	// Defaults lists fields of KubeKey's Cluster that the file does not set and whose default is
	// another one here. Each is "spec.network.plugin: what is done instead".
	Defaults []string
}

// Parse reads the cluster in the content of a file, which has Orrery's or KubeKey's Cluster. dir is
// the directory of the file: relative paths in the spec become relative to dir. If dir is "", they
// stay as they are. An unknown field is an error in Orrery's Cluster. In KubeKey's Cluster it is
// listed in Ignored, and value files of charts are read into the spec. Parse sets no defaults and
// does not validate the spec.
func Parse(content []byte, dir string) (*Read, error) {
	docs, err := documents(content)
	if err != nil {
		return nil, err
	}
	for i, d := range docs {
		switch {
		case d.kind == kind && strings.HasPrefix(d.apiVersion, kubekeyGroup):
			return parseKubeKey(d, append(docs[:i:i], docs[i+1:]...), dir)
		case d.kind == kind && d.apiVersion == apiVersion:
			if len(docs) > 1 {
				return nil, fmt.Errorf("line %d: the file has %d documents: put the Cluster in a file of its own", d.line, len(docs))
			}
			cluster, err := d.cluster()
			if err != nil {
				return nil, err
			}
			resolve(cluster.Spec.Provision, dir)
			return &Read{Cluster: cluster}, nil
		}
	}
	if len(docs) == 0 {
		return nil, errors.New("the file is empty: orrery cluster config writes one to begin with")
	}
	return nil, fmt.Errorf("line %d: apiVersion %q and kind %q are not those of a cluster: use %s and %s, or KubeKey's kubekey.kubesphere.io/v1alpha2",
		docs[0].line, docs[0].apiVersion, docs[0].kind, apiVersion, kind)
}

// document is one YAML document in the file that Parse reads.
type document struct {
	// line is the line of the file at which the document begins.
	line int
	// yaml is the text of the document after empty lines, so that line numbers in messages are those
	// of the file.
	yaml             []byte
	json             []byte
	apiVersion, kind string
	name             string
}

// documents splits the content of a file into its YAML documents, at lines that begin with ---. It
// skips documents that have only comments. A document that is not an object, or has a key twice, is
// an error.
func documents(content []byte) ([]document, error) {
	var (
		docs  []document
		text  []byte
		begin = 1
	)
	add := func() error {
		d := document{line: begin, yaml: text}
		var err error
		if d.json, err = yaml.YAMLToJSONStrict(text); err != nil {
			return fmt.Errorf("read YAML: %w", err)
		}
		if string(d.json) == "null" {
			return nil
		}
		if d.json[0] != '{' {
			return fmt.Errorf("line %d: this is no object: it needs apiVersion and kind", begin)
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Metadata   struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if err := json.UnmarshalCaseSensitivePreserveInts(d.json, &head); err != nil {
			return fmt.Errorf("line %d: read apiVersion, kind and name: %w", begin, plain(err))
		}
		d.apiVersion, d.kind, d.name = head.APIVersion, head.Kind, head.Metadata.Name
		docs = append(docs, d)
		return nil
	}
	number := 0
	for line := range bytes.Lines(content) {
		number++
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && (len(rest) == 0 || strings.IndexByte(" \t\r\n", rest[0]) >= 0) {
			if err := add(); err != nil {
				return nil, err
			}
			text, begin = bytes.Repeat([]byte("\n"), number-1), number+1
			line = rest
		}
		text = append(text, line...)
	}
	if err := add(); err != nil {
		return nil, err
	}
	return docs, nil
}

// cluster decodes the document as Orrery's Cluster, strictly. It returns an error, with line
// numbers, for unknown fields, and if the name or spec.provision is missing.
func (d document) cluster() (*clusterv1alpha1.Cluster, error) {
	cluster := &clusterv1alpha1.Cluster{}
	unknown, err := json.UnmarshalStrict(d.json, cluster)
	if err != nil {
		return nil, fmt.Errorf("line %d: read the Cluster: %w", d.line, plain(err))
	}
	unknown = append(unknown, unhonoured(cluster.Spec)...)
	if len(unknown) > 0 {
		return nil, d.at(unknown)
	}
	switch {
	case cluster.Name == "":
		return nil, fmt.Errorf("line %d: metadata.name is missing: give the cluster a name", d.line)
	case cluster.Spec.Provision == nil:
		return nil, fmt.Errorf("line %d: %s is missing: it says what the cluster is built of; to join one that runs, use orrery cluster join", d.line, provisionPath)
	}
	return cluster, nil
}

// unhonoured returns errors for fields of a Cluster that are set but have no effect. The API has
// them only so that the hub can refuse them. The errors look like those for unknown fields.
func unhonoured(s clusterv1alpha1.ClusterSpec) []error {
	var errs []error
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"id", s.ID != ""},
		{"zone", s.Zone != ""},
		{"insecureSkipTLSVerification", s.InsecureSkipTLSVerification},
		{"proxyHeader", len(s.ProxyHeader) > 0},
		{"resourceModels", len(s.ResourceModels) > 0},
	} {
		if field.set {
			errs = append(errs, fmt.Errorf("unknown field %q", "spec."+field.name))
		}
	}
	return errs
}

// mistyped matches the error of encoding/json for a value of the wrong type. Its groups are the
// value, the field and the type.
var mistyped = regexp.MustCompile(`^json: cannot unmarshal (\S+) .*into Go struct field [^.]*\.(\S+) of type (\S+)$`)

// plain rewrites the error of decoding JSON so that the user sees no Go types. It returns any other
// error, and nil, unchanged.
func plain(err error) error {
	if err == nil {
		return nil
	}
	if m := mistyped.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s is %s and must be %s", m[2], m[1], m[3])
	}
	return err
}

// resolve makes relative paths in a spec relative to dir, the directory of its file. URLs and paths
// that begin with ~ stay as they are. If dir is "", all paths stay.
func resolve(spec *clusterv1alpha1.Provision, dir string) {
	at := func(path *string) {
		if p := *path; p != "" && dir != "" && !filepath.IsAbs(p) && !strings.HasPrefix(p, "~") && !strings.Contains(p, "://") {
			*path = filepath.Join(dir, p)
		}
	}
	for i := range spec.Hosts {
		at(&spec.Hosts[i].PrivateKeyPath)
		if bastion := spec.Hosts[i].Bastion; bastion != nil {
			at(&bastion.PrivateKeyPath)
		}
	}
	if external := spec.Etcd.External; external != nil {
		at(&external.CAFile)
		at(&external.CertFile)
		at(&external.KeyFile)
	}
	at(&spec.Network.Manifest)
	charts := []*clusterv1alpha1.Chart{spec.Network.Chart}
	for i := range spec.Addons {
		charts = append(charts, spec.Addons[i].Chart)
		for j := range spec.Addons[i].YAML {
			at(&spec.Addons[i].YAML[j])
		}
	}
	for _, chart := range charts {
		if chart != nil {
			at(&chart.Path)
		}
	}
}

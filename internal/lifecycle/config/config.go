// Package config reads and writes files that describe clusters: Orrery's Cluster, strictly,
// KubeKey's Cluster, a commented template, and the file of a running cluster.
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

// Read is the result of Parse.
type Read struct {
	Cluster *clusterv1alpha1.Cluster
	// Ignored lists the fields without effect, each as "spec.kubernetes.kata: reason".
	Ignored []string
	// Defaults lists fields of KubeKey that are not set and have another default there, each as
	// "spec.network.plugin: what is done instead".
	Defaults []string
}

// Parse reads a cluster from a file in the directory dir. Relative paths in the file are relative
// to dir. An unknown field is an error in Orrery's Cluster. In KubeKey's Cluster it is listed in
// Ignored. Parse sets no defaults and does not validate the spec.
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

// document is a YAML document in a file.
type document struct {
	// line is the line of the file at which it begins.
	line int
	// yaml begins with empty lines, so that line numbers in messages are those of the file.
	yaml             []byte
	json             []byte
	apiVersion, kind string
	name             string
}

// documents splits a file at its --- lines. It skips documents with only comments.
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

// cluster decodes Orrery's Cluster strictly.
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

// unhonoured returns errors for fields that exist only so that the hub can refuse them.
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

var mistyped = regexp.MustCompile(`^json: cannot unmarshal (\S+) .*into Go struct field [^.]*\.(\S+) of type (\S+)$`)

// plain rewrites a JSON decoding error without Go types.
func plain(err error) error {
	if err == nil {
		return nil
	}
	if m := mistyped.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s is %s and must be %s", m[2], m[1], m[3])
	}
	return err
}

// resolve makes relative paths of a spec relative to dir, the directory of its file.
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

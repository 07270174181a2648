package config

import (
	"bytes"
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

//go:embed cluster.yaml.tmpl
var sheetText string

var sheetTemplate = template.Must(template.New("cluster").Funcs(template.FuncMap{
	"text": text,
	"join": func(items []string) string {
		texts := make([]string, len(items))
		for i, item := range items {
			texts[i] = text(item)
		}
		return strings.Join(texts, ", ")
	},
}).Parse(sheetText))

// plainText matches texts that need no quotes in YAML, unless YAML reads them as another type.
var plainText = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9./-]*$`)

// text formats a string as a YAML scalar on one line, with quotes if they are needed.
func text(s string) string {
	var read any
	if err := yaml.Unmarshal([]byte(s), &read); err == nil && read == s && plainText.MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}

// sheet has the values that are filled into the template of a configuration file. newSheet makes
// it, and render returns the file.
type sheet struct {
	Name, Origin string
	// Live is true for the values of a running cluster. Notes list what its API does not show.
	Live                         bool
	Notes                        []string
	Hosts                        []sheetHost
	ControlPlanes, Workers, Etcd []string
	ExternalEtcd                 []string
	Address, Domain              string
	Port                         int32
	Version, DNSDomain           string
	ProxyMode                    string
	NoProxy                      bool
	MaxPods, MaskSize            int32
	Plugin                       string
	Pods, Services               string
}

// sheetHost is a host in a sheet. Internal is the internal address. Labels are a JSON object, or
// "".
type sheetHost struct{ Name, Address, Internal, Arch, Labels string }

// newSheet returns a sheet for a cluster with this name and version of Kubernetes: the defaults of
// a spec, without hosts.
func newSheet(name, version string) *sheet {
	spec := &clusterv1alpha1.Provision{Kubernetes: clusterv1alpha1.Kubernetes{Version: version}}
	plan.Default(name, spec)
	return &sheet{
		Name: name, Version: version, Port: spec.ControlPlaneEndpoint.Port, DNSDomain: spec.Kubernetes.DNSDomain,
		ProxyMode: spec.Kubernetes.ProxyMode, MaxPods: spec.Kubernetes.MaxPods, MaskSize: spec.Kubernetes.NodeCidrMaskSize,
		Plugin: spec.Network.Plugin, Pods: spec.Network.KubePodsCIDR, Services: spec.Network.KubeServiceCIDR,
	}
}

// render fills the values into the template, and returns the configuration file.
func (s *sheet) render() ([]byte, error) {
	var b bytes.Buffer
	if err := sheetTemplate.Execute(&b, s); err != nil {
		return nil, fmt.Errorf("fill in the template of the file: %w", err)
	}
	return b.Bytes(), nil
}

// Template returns a commented configuration file for a cluster of one host, with which a user
// begins. It has every field, with its default or an example. name is that of the cluster, and
// version that of Kubernetes.
func Template(name, version string) []byte {
	s := newSheet(name, version)
	s.Origin = "Fill in your hosts."
	s.Hosts = []sheetHost{{Name: "node1", Address: "10.0.0.11"}}
	s.ControlPlanes, s.Workers = []string{"node1"}, []string{"node1"}
	content, err := s.render()
	if err != nil { // a faulty template, which tests would find
		panic(err)
	}
	return content
}

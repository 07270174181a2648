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

var plainText = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9./-]*$`)

// text formats a string for YAML, with quotes if needed.
func text(s string) string {
	var read any
	if err := yaml.Unmarshal([]byte(s), &read); err == nil && read == s && plainText.MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}

// sheet has the values for the template of a file.
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

// sheetHost is a host in the file. Labels are JSON.
type sheetHost struct{ Name, Address, Internal, Arch, Labels string }

// newSheet returns a sheet with the defaults of all fields.
func newSheet(name, version string) *sheet {
	spec := &clusterv1alpha1.Provision{Kubernetes: clusterv1alpha1.Kubernetes{Version: version}}
	plan.Default(name, spec)
	return &sheet{
		Name: name, Version: version, Port: spec.ControlPlaneEndpoint.Port, DNSDomain: spec.Kubernetes.DNSDomain,
		ProxyMode: spec.Kubernetes.ProxyMode, MaxPods: spec.Kubernetes.MaxPods, MaskSize: spec.Kubernetes.NodeCidrMaskSize,
		Plugin: spec.Network.Plugin, Pods: spec.Network.KubePodsCIDR, Services: spec.Network.KubeServiceCIDR,
	}
}

func (s *sheet) render() ([]byte, error) {
	var b bytes.Buffer
	if err := sheetTemplate.Execute(&b, s); err != nil {
		return nil, fmt.Errorf("fill in the template of the file: %w", err)
	}
	return b.Bytes(), nil
}

// Template returns a commented file for a cluster of one host. It has every field, with its default
// or an example.
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

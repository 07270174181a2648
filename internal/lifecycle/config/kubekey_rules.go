package config

import (
	_ "embed" // kubekey.yaml
	"strings"

	"sigs.k8s.io/yaml"
)

// rule says what happens to a field of KubeKey's Cluster. The field is kept if reason is "", else
// it is ignored for that reason.
type rule struct{ reason string }

// toCome begins the reason for a field that Orrery does not support yet.
const toCome = "to come"

//go:embed kubekey.yaml
var rulesYAML []byte

// rules has the rule of each field of KubeKey's Cluster v1alpha2. The key is the path below spec
// without indices, such as hosts[].name. kubekey.yaml explains the rules.
var rules = func() map[string]rule {
	var byReason map[string][]string
	if err := yaml.UnmarshalStrict(rulesYAML, &byReason); err != nil {
		panic(err) // the file is embedded
	}
	byPath := map[string]rule{}
	for reason, paths := range byReason {
		for _, path := range paths {
			byPath[path] = rule{reason}
		}
	}
	return byPath
}()

// within has the paths of objects and lists in KubeKey's spec whose fields have rules of their own.
var within = above(rules)

// above returns the paths of all parents of the given paths.
func above(rules map[string]rule) map[string]bool {
	paths := map[string]bool{}
	for path := range rules {
		for i, r := range path {
			if r == '.' {
				paths[strings.TrimSuffix(path[:i], "[]")] = true
			}
		}
	}
	return paths
}

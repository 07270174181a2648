package config

import (
	_ "embed" // kubekey.yaml
	"strings"

	"sigs.k8s.io/yaml"
)

// rule says whether a field of KubeKey's Cluster is kept (no reason) or ignored.
type rule struct{ reason string }

const toCome = "to come"

//go:embed kubekey.yaml
var rulesYAML []byte

// rules has each field of v1alpha2, by its path below spec. kubekey.yaml explains them.
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

// within has the parent paths of rules.
var within = above(rules)

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

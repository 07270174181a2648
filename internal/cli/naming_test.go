package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestParseNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		args  []string
		types []string
		names map[string][]string
	}{
		"None":       {nil, nil, map[string][]string{}},
		"Type":       {[]string{"pods"}, []string{"pods"}, map[string][]string{}},
		"Types":      {[]string{"pods,svc"}, []string{"pods", "svc"}, map[string][]string{}},
		"Names":      {[]string{"pods", "a", "b", "a"}, []string{"pods"}, map[string][]string{"pods": {"a", "b"}}},
		"TypesNames": {[]string{"pods,svc", "a"}, []string{"pods", "svc"}, map[string][]string{"pods": {"a"}, "svc": {"a"}}},
		"Slashes":    {[]string{"pods/a", "svc/b", "pods/c"}, []string{"pods", "svc"}, map[string][]string{"pods": {"a", "c"}, "svc": {"b"}}},
	} {
		n, err := parseNamed(tc.args)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tc.types, n.types) + cmp.Diff(tc.names, n.names); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, args := range [][]string{{"pods/a", "b"}, {"/a"}, {"pods/"}, {"pods/a/b"}, {"pods,", "a"}, {""}} {
		if n, err := parseNamed(args); err == nil {
			t.Errorf("%q is taken for %v", args, n)
		}
	}
}

func TestListed(t *testing.T) {
	for path, want := range map[string]string{
		"/fleet/api/v1/pods":                                "pods",
		"/fleet/api/v1/namespaces/shop/pods":                "pods",
		"/fleet/api/v1/namespaces":                          "namespaces",
		"/fleet/apis/apps/v1/deployments":                   "deployments.apps",
		"/fleet/apis/apps/v1/namespaces/shop/deployments":   "deployments.apps",
		"/fleet/api/v1/namespaces/shop":                     "",
		"/fleet/api/v1/namespaces/shop/pods/web":            "",
		"/fleet/apis/apps/v1/namespaces/shop/deployments/w": "",
		"/fleet/api/v1":                                     "",
		"/fleet/apis/apps/v1":                               "",
		"/fleet/apis":                                       "",
		"/fleet/version":                                    "",
		"/other/api/v1/pods":                                "",
		"/fleets/api/v1/pods":                               "",
	} {
		got, ok := listed(path, "/fleet")
		if !ok {
			got = schema.GroupResource{}
		}
		if got.String() != want {
			t.Errorf("%s is a list of %q, want %q", path, got, want)
		}
	}
}

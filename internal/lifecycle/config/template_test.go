package config_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/config"
	"orrery.dev/orrery/internal/lifecycle/plan"
)

// TestTemplateIsDefault: the template means the same as a file with only hosts and version.
func TestTemplateIsDefault(t *testing.T) {
	read := mustParse(t, string(config.Template("alpha", "v1.36.3")))
	want := &clusterv1alpha1.Provision{
		Hosts:      []clusterv1alpha1.Host{{Name: "node1", Address: "10.0.0.11"}},
		RoleGroups: map[clusterv1alpha1.Role]clusterv1alpha1.HostNames{"control-plane": {"node1"}, "worker": {"node1"}},
		Kubernetes: clusterv1alpha1.Kubernetes{Version: "v1.36.3"},
	}
	got := read.Cluster.Spec.Provision
	plan.Default("alpha", want)
	plan.Default("alpha", got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if problems := plan.Validate("alpha", got); len(problems) > 0 {
		t.Errorf("got %v", problems)
	}
}

// TestTemplateHasEveryField: with all comments removed, every field of the schema has a value.
func TestTemplateHasEveryField(t *testing.T) {
	whole := regexp.MustCompile(`(?m)^( *)#([^ \n])`).ReplaceAllString(string(config.Template("alpha", "v1.36.3")), "$1$2")
	spec := mustParse(t, whole).Cluster.Spec.Provision
	missing := map[string]bool{}
	unset(reflect.ValueOf(spec).Elem(), missing)
	for path, is := range missing {
		if is {
			t.Errorf("%s is not in the template", path)
		}
	}
}

// unset records the fields of each type that never have a value.
func unset(v reflect.Value, missing map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Elem().Type().PkgPath() == reflect.TypeFor[clusterv1alpha1.Provision]().PkgPath() {
			unset(v.Elem(), missing)
		}
	case reflect.Slice:
		for i := range v.Len() {
			unset(v.Index(i), missing)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			p := v.Type().Name() + "." + name
			if _, known := missing[p]; v.Field(i).IsZero() {
				missing[p] = !known || missing[p]
			} else {
				missing[p] = false
			}
			unset(v.Field(i), missing)
		}
	default:
	}
}

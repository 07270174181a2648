package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/testenv"
)

// TestTheNamesOfTheClustersAreWritten: the names of the clusters are written when a cluster
// joins or leaves, and only then. A restart does not write them again.
func TestTheNamesOfTheClustersAreWritten(t *testing.T) {
	c, err := client.New(testenv.Config(0), client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	if err := c.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	read := func() (names, version string) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(ns), ns); err != nil {
			t.Fatal(err)
		}
		return ns.Annotations[clusterv1alpha1.NamesAnnotation], ns.ResourceVersion
	}
	var names []string
	known := true
	start := func() *namesWriter {
		return newNamesWriter(c, c, nil, func() ([]string, bool) { return slices.Clone(names), known })
	}
	n := start()
	for _, step := range []struct {
		name      string
		prepare   func()
		want      string
		isWritten bool
	}{
		{"TwoClusters", func() { names = []string{"pine", "oak"} }, "oak,pine", true},
		{"NoNews", func() {}, "oak,pine", false},
		{"AStart", func() { n = start() }, "oak,pine", false},
		{"NotKnown", func() { known, names = false, nil }, "oak,pine", false},
		{"OneMore", func() { known, names = true, []string{"ash", "pine", "oak"} }, "ash,oak,pine", true},
		{"TooMany", func() { names = []string{strings.Repeat("x", longestNames+1)} }, "", true},
	} {
		step.prepare()
		_, before := read()
		if next := n.write(t.Context(), struct{}{}); next.Backoff {
			t.Errorf("%s: the write failed", step.name)
		}
		got, after := read()
		if got != step.want || (before != after) != step.isWritten {
			t.Errorf("%s: the names are %q, want %q; written: %t, want %t", step.name, got, step.want, before != after, step.isWritten)
		}
	}

	w := newWorld(t, 2)
	written := func(letters string) {
		t.Helper()
		var want []string
		for letter := range strings.SplitSeq(letters, "") {
			want = append(want, w.namespace+"-"+letter)
		}
		w.eventually("the names are "+letters, func() error {
			if got, _ := read(); got != strings.Join(want, ",") {
				return fmt.Errorf("they are %s", got)
			}
			return nil
		})
	}
	written("ab")
	w.join("c")
	written("abc")
}

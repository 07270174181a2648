package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// key names a template. The version is not part of it: an object is the same in all of
// them. Cluster-scoped templates have no namespace.
type key struct {
	schema.GroupKind
	namespace, name string
}

func keyOf(o *unstructured.Unstructured) key {
	return key{GroupKind: o.GroupVersionKind().GroupKind(), namespace: o.GetNamespace(), name: o.GetName()}
}

func templateOf(b *workv1alpha2.ResourceBinding) key {
	return key{GroupKind: kindOf(b).GroupKind(), namespace: b.Namespace, name: b.Spec.Resource.Name}
}

func kindOf(b *workv1alpha2.ResourceBinding) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(b.Spec.Resource.APIVersion, b.Spec.Resource.Kind)
}

// String is Kind namespace/name, as messages have it.
func (k key) String() string {
	if k.namespace == "" {
		return k.Kind + " " + k.name
	}
	return k.Kind + " " + k.namespace + "/" + k.name
}

// bindings finds bindings by the template that they refer to: their names may be taken by
// somebody else's.
type bindings struct {
	mu        sync.RWMutex
	templates map[key]map[types.UID]*workv1alpha2.ResourceBinding
	names     map[types.NamespacedName]key
}

func newBindings() *bindings {
	return &bindings{
		templates: map[key]map[types.UID]*workv1alpha2.ResourceBinding{},
		names:     map[types.NamespacedName]key{},
	}
}

// replace makes known what a binding was (nil: it is new) and is (nil: gone).
func (s *bindings) replace(old, b *workv1alpha2.ResourceBinding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old != nil {
		k := templateOf(old)
		if delete(s.templates[k], old.UID); len(s.templates[k]) == 0 {
			delete(s.templates, k)
		}
		delete(s.names, types.NamespacedName{Namespace: old.Namespace, Name: old.Name})
	}
	if b != nil {
		k := templateOf(b)
		if s.templates[k] == nil {
			s.templates[k] = map[types.UID]*workv1alpha2.ResourceBinding{}
		}
		s.templates[k][b.UID] = b
		s.names[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = k
	}
}

// of returns the binding of a template, nil when there is none, and those that somebody
// made beside it: ours is the one with the right name, or the oldest.
func (s *bindings) of(k key) (binding *workv1alpha2.ResourceBinding, others []*workv1alpha2.ResourceBinding) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := slices.SortedFunc(maps.Values(s.templates[k]), func(a, b *workv1alpha2.ResourceBinding) int {
		return cmp.Or(
			-cmp.Compare(rank(a, k), rank(b, k)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Name, b.Name),
		)
	})
	if len(all) == 0 {
		return nil, nil
	}
	return all[0], all[1:]
}

func rank(b *workv1alpha2.ResourceBinding, k key) int {
	if b.Name == bindingName(k) {
		return 1
	}
	return 0
}

func (s *bindings) keys() []key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Keys(s.templates))
}

// kinds of all templates that have bindings.
func (s *bindings) kinds() []schema.GroupVersionKind {
	s.mu.RLock()
	defer s.mu.RUnlock()
	kinds := sets.New[schema.GroupVersionKind]()
	for _, all := range s.templates {
		for _, b := range all {
			kinds.Insert(kindOf(b))
		}
	}
	return kinds.UnsortedList()
}

// name for a new binding of a template: bindingName, unless another template's binding has
// it.
func (s *bindings) name(k key) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	name := bindingName(k)
	if other, taken := s.names[types.NamespacedName{Namespace: k.namespace, Name: name}]; taken && other != k {
		return hashed(name, k)
	}
	return name
}

// bindingName is NAME-KIND for the kinds that Kubernetes has built in, else
// NAME-KIND.GROUP. A name that would be too long, or is none for a binding (those of RBAC
// roles may hold colons), is made fit and gets a hash of the template's own.
func bindingName(k key) string {
	name := k.name + "-" + strings.ToLower(k.Kind)
	if strings.Contains(k.Group, ".") && !strings.HasSuffix(k.Group, ".k8s.io") {
		name += "." + k.Group
	}
	if len(validation.IsDNS1123Subdomain(name)) == 0 {
		return name
	}
	return hashed(name, k)
}

// hashed makes a name of a template's own.
func hashed(name string, k key) string {
	sum := sha256.Sum256([]byte(k.Group + "/" + k.Kind + "/" + k.name))
	suffix := "-" + hex.EncodeToString(sum[:5])
	// Dots would need a letter or digit on both sides of each, so they go too.
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	name = name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(suffix))]
	return strings.Trim(name, "-") + suffix
}

// object is a binding as the kind that it is on the hub; it shares b's memory.
func object(b *workv1alpha2.ResourceBinding) client.Object {
	if b.Namespace == "" {
		return (*workv1alpha2.ClusterResourceBinding)(b)
	}
	return b
}

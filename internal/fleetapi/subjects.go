package fleetapi

import (
	"slices"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"orrery.dev/orrery/internal/access"
)

// boundRoles has the subjects that the hub's bindings give each role. ClusterRoles and
// ClusterRoleBindings have no namespace.
type boundRoles struct {
	mu       sync.Mutex
	bindings map[types.NamespacedName]bound
	// by role, the bindings that grant it
	of map[types.NamespacedName]sets.Set[types.NamespacedName]
}

// bound is a binding.
type bound struct {
	role     types.NamespacedName
	subjects []access.Subject
}

func newBoundRoles() *boundRoles {
	return &boundRoles{bindings: map[types.NamespacedName]bound{}, of: map[types.NamespacedName]sets.Set[types.NamespacedName]{}}
}

// subjects returns the subjects that have a role.
func (b *boundRoles) subjects(role types.NamespacedName) (all []access.Subject) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.of[role] {
		all = append(all, b.bindings[name].subjects...)
	}
	return all
}

// set records the present state of a binding; without subjects, the binding is deleted. It
// returns the subjects before and after.
func (b *boundRoles) set(name types.NamespacedName, ref rbacv1.RoleRef, subjects []access.Subject) (changed []access.Subject) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, known := b.bindings[name]
	if known && b.of[was.role].Delete(name).Len() == 0 {
		delete(b.of, was.role)
	}
	delete(b.bindings, name)
	if len(subjects) == 0 {
		return was.subjects
	}
	is := bound{role: types.NamespacedName{Name: ref.Name}, subjects: subjects}
	if ref.Kind == "Role" {
		is.role.Namespace = name.Namespace
	}
	b.bindings[name] = is
	if b.of[is.role] == nil {
		b.of[is.role] = sets.New[types.NamespacedName]()
	}
	b.of[is.role].Insert(name)
	return append(slices.Clip(was.subjects), subjects...)
}

// subjectChanges counts the changes of the hub's RBAC, and records the last one of each subject.
type subjectChanges struct {
	mu       sync.RWMutex
	last     uint64
	by       map[access.Subject]subjectChange
	everyone subjectChange
	// repeated are the subjects of changes that must be counted once more: the hub's authorizer
	// may learn of a change later than this process.
	repeated, again sets.Set[access.Subject]
	now             func() time.Time
}

// subjectChange is the number and the time of a change.
type subjectChange struct {
	number uint64
	at     time.Time
}

// changeSettles is the time after a change in which the hub's authorizer may not know it.
const changeSettles = 10 * time.Second

// mostSubjects is the maximum number of subjects with a recorded change. Beyond it, every change
// counts for all subjects.
const mostSubjects = 100_000

func newSubjectChanges() *subjectChanges {
	return &subjectChanges{by: map[access.Subject]subjectChange{}, repeated: sets.New[access.Subject](), again: sets.New[access.Subject](), now: time.Now}
}

// add counts a change of subjects.
func (c *subjectChanges) add(of []access.Subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeated.Insert(of...)
	c.count(sets.New(of...))
}

// repeat counts once more the changes since the last call, and those before it if that call had
// again. again is true if another call will follow.
func (c *subjectChanges) repeat(again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(c.repeated.Union(c.again))
	c.again = sets.New[access.Subject]()
	if again {
		c.again = c.repeated
	}
	c.repeated = sets.New[access.Subject]()
}

// count counts a change. c.mu must be held.
func (c *subjectChanges) count(of sets.Set[access.Subject]) {
	if len(of) == 0 {
		return
	}
	c.last++
	now := subjectChange{c.last, c.now()}
	if len(c.by)+len(of) > mostSubjects {
		clear(c.by)
		c.everyone = now
		return
	}
	for s := range of {
		c.by[s] = now
	}
}

// of returns the last change of a user or its groups.
func (c *subjectChanges) of(user string, groups []string) subjectChange {
	c.mu.RLock()
	defer c.mu.RUnlock()
	last := c.everyone
	look := func(s access.Subject) {
		if change := c.by[s]; change.number > last.number {
			last = change
		}
	}
	look(access.Subject{Name: user})
	for _, group := range groups {
		look(access.Subject{Group: true, Name: group})
	}
	return last
}

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

// boundRoles has, for each role of the hub, the subjects (users and groups) to which bindings give
// it. The names of ClusterRoles and ClusterRoleBindings have no namespace. Several goroutines may
// use it.
type boundRoles struct {
	mu       sync.Mutex
	bindings map[types.NamespacedName]bound
	// of has, by role, the bindings that grant it.
	of map[types.NamespacedName]sets.Set[types.NamespacedName]
}

// bound is what a RoleBinding or ClusterRoleBinding grants: a role, and the users and groups that
// get it.
type bound struct {
	role     types.NamespacedName
	subjects []access.Subject
}

// newBoundRoles returns boundRoles without bindings.
func newBoundRoles() *boundRoles {
	return &boundRoles{bindings: map[types.NamespacedName]bound{}, of: map[types.NamespacedName]sets.Set[types.NamespacedName]{}}
}

// subjects returns the users and groups to which bindings give a role, in no order. A subject of
// several bindings occurs several times.
func (b *boundRoles) subjects(role types.NamespacedName) (all []access.Subject) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.of[role] {
		all = append(all, b.bindings[name].subjects...)
	}
	return all
}

// set records the present role and subjects of a binding. Without subjects it deletes the record of
// the binding, which then grants nothing. It returns the subjects before and after the change,
// since their rights may have changed.
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

// subjectChanges counts the changes of the hub's RBAC, and records the last change of each subject
// (a user or a group). Cached answers from before that change are no longer used. Several
// goroutines may use it.
type subjectChanges struct {
	mu       sync.RWMutex
	last     uint64 // the number of the last change
	by       map[access.Subject]subjectChange
	everyone subjectChange // the last change that counts for all subjects
	// The next call of repeat counts the changes of both sets again. repeated are the subjects that
	// add has recorded since the last call. again are those that the last call kept for another count.
	repeated, again sets.Set[access.Subject]
	now             func() time.Time
}

// subjectChange is a change of the rights of a subject. Each change has a greater number than those
// before.
type subjectChange struct {
	number uint64
	at     time.Time
}

// changeSettles is the time after a change of RBAC in which the hub's authorizer may not know the
// change.
const changeSettles = 10 * time.Second

// mostSubjects is the maximum number of subjects whose last change is recorded. If there would be
// more, the record is cleared, and the change counts for all subjects.
const mostSubjects = 100_000

// newSubjectChanges returns subjectChanges without a change.
func newSubjectChanges() *subjectChanges {
	return &subjectChanges{by: map[access.Subject]subjectChange{}, repeated: sets.New[access.Subject](), again: sets.New[access.Subject](), now: time.Now}
}

// add counts a change of the rights of these subjects, and records it for the next call of repeat.
func (c *subjectChanges) add(of []access.Subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.repeated.Insert(of...)
	c.count(sets.New(of...))
}

// repeat counts recorded changes a second time, because the hub's authorizer may learn of a change
// later than this process. These are the changes that add has recorded since the last call of
// repeat. If again was true in the last call, repeat also counts the changes of that call a last
// time. again is true if another call will follow. grants calls repeat before each notification.
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

// count counts one change for all of these subjects. It does nothing if there are none. The caller
// holds c.mu.
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

// of returns the last change of the rights of a user, or of one of its groups. The zero value means
// that there was none. If too many subjects changed to record each, the result may be a change of
// another subject.
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

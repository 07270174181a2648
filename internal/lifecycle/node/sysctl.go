package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// sysctls is the kind of step that performs a plan.Sysctls: it sets kernel parameters now and at
// each boot.
type sysctls struct{ *plan.Sysctls }

// bootFileMode is the mode of the files with sysctls and modules that the host reads at boot.
const bootFileMode = "0644"

// content returns the content of the file that is read at boot, sorted by key.
func (c sysctls) content() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(c.Values)) {
		fmt.Fprintf(&b, "%s = %s\n", key, c.Values[key])
	}
	return b.String()
}

// observe implements kind. It compares the present values, and the file that is read at boot.
func (c sysctls) observe(_ context.Context, s *session, _ *record) (string, error) {
	for _, key := range slices.Sorted(maps.Keys(c.Values)) {
		value, err := s.System.Sysctl(key)
		if err != nil {
			return "", err
		}
		if !sameValue(value, c.Values[key]) {
			return fmt.Sprintf("%s is %s, want %s", key, value, c.Values[key]), nil
		}
	}
	return s.differs(c.Path, bootFileMode, digestOf([]byte(c.content())))
}

// capture implements kind. It records the file, and the present values of parameters that are not
// recorded yet.
func (c sysctls) capture(_ context.Context, s *session, r *record) error {
	if r.Before.Sysctls == nil {
		r.Before.Sysctls = make(map[string]string)
	}
	for key := range c.Values {
		if _, ok := r.Before.Sysctls[key]; ok {
			continue
		}
		value, err := s.System.Sysctl(key)
		if err != nil {
			return err
		}
		r.Before.Sysctls[key] = value
	}
	return s.capturePath(r, c.Path)
}

// apply implements kind. It writes the values to the file that is read at boot, and sets those that
// differ now. Parameters that only an earlier version of the step had get their former values.
func (c sysctls) apply(ctx context.Context, s *session, r *record) error {
	if err := s.keepPaths(r, c.Path); err != nil {
		return err
	}
	for key, value := range maps.Clone(r.Before.Sysctls) {
		if _, ok := c.Values[key]; ok {
			continue
		}
		if err := s.System.SetSysctl(key, value); err != nil {
			return err
		}
		delete(r.Before.Sysctls, key)
	}
	if err := s.place(ctx, c.Path, bootFileMode, c.content()); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(c.Values)) {
		if value, err := s.System.Sysctl(key); err == nil && sameValue(value, c.Values[key]) {
			continue
		}
		if err := s.System.SetSysctl(key, c.Values[key]); err != nil {
			return err
		}
	}
	return nil
}

// revert implements kind. It restores the former values and the file. It skips parameters that no
// longer exist.
func (c sysctls) revert(_ context.Context, s *session, r *record) error {
	for _, key := range slices.Sorted(maps.Keys(r.Before.Sysctls)) {
		value, err := s.System.Sysctl(key)
		if err != nil { // the parameter no longer exists, because its module was unloaded
			continue
		}
		if sameValue(value, r.Before.Sysctls[key]) {
			continue
		}
		if err := s.System.SetSysctl(key, r.Before.Sysctls[key]); err != nil {
			return err
		}
	}
	return s.restorePaths(r)
}

// sameValue reports whether two values of a kernel parameter are equal apart from white space. The
// kernel prints tabs where a step may have spaces.
func sameValue(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) }

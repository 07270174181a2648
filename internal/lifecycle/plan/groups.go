package plan

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// maxHosts is the maximum number of hosts in a cluster.
const maxHosts = 1000

// rangePattern matches a range of hosts, such as node[1:10].
var rangePattern = regexp.MustCompile(`^([^\[\]]*)\[([0-9]{1,9}):([0-9]{1,9})\]([^\[\]]*)$`)

// Expand returns the hosts of each role of spec.roleGroups, in the order of the group and without
// repetitions. It expands ranges: node[1:3] means node1, node2 and node3, and node[01:10] means
// node01 to node10. The error joins the errors of all invalid items. Expand does not check whether
// the hosts exist.
func Expand(groups map[clusterv1alpha1.Role]clusterv1alpha1.HostNames) (map[clusterv1alpha1.Role][]string, error) {
	var problems []error
	expanded := make(map[clusterv1alpha1.Role][]string, len(groups))
	for role, items := range groups {
		var names []string
		for i, item := range items {
			more, err := expand(item)
			if err != nil {
				problems = append(problems, fmt.Errorf("roleGroups[%s][%d]: %w", role, i, err))
			}
			if names = append(names, more...); len(names) > 2*maxHosts {
				problems = append(problems, fmt.Errorf("roleGroups[%s]: more than %d hosts", role, maxHosts))
				break
			}
		}
		expanded[role] = unique(names)
	}
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(problems...)
	}
	return expanded, nil
}

// expand returns the host names that one item of a role group means: the item itself, or the names
// of its range. It returns an error for an invalid range, or a range with more than maxHosts names.
func expand(item string) ([]string, error) {
	if !strings.ContainsAny(item, "[]") {
		return []string{item}, nil
	}
	parts := rangePattern.FindStringSubmatch(item)
	if parts == nil {
		return nil, fmt.Errorf("%q is not a range such as node[1:10]", item)
	}
	prefix, first, last, suffix := parts[1], parts[2], parts[3], parts[4]
	from, err := strconv.Atoi(first)
	if err != nil {
		return nil, fmt.Errorf("parse the start of range %q: %w", item, err)
	}
	to, err := strconv.Atoi(last)
	if err != nil {
		return nil, fmt.Errorf("parse the end of range %q: %w", item, err)
	}
	switch {
	case to < from:
		return nil, fmt.Errorf("the range %q ends before it starts: write the lower number first", item)
	case to-from >= maxHosts:
		return nil, fmt.Errorf("the range %q has more than %d hosts", item, maxHosts)
	}
	width := 0
	if strings.HasPrefix(first, "0") {
		width = len(first)
	}
	names := make([]string, 0, to-from+1)
	for n := from; n <= to; n++ {
		names = append(names, fmt.Sprintf("%s%0*d%s", prefix, width, n, suffix))
	}
	return names, nil
}

// unique returns the names in their order, without repetitions. It overwrites the given slice.
func unique(names []string) []string {
	seen := make(map[string]bool, len(names))
	return slices.DeleteFunc(names, func(name string) bool {
		defer func() { seen[name] = true }()
		return seen[name]
	})
}

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

var rangePattern = regexp.MustCompile(`^([^\[\]]*)\[([0-9]{1,9}):([0-9]{1,9})\]([^\[\]]*)$`)

// Expand returns the hosts of each role, in the order of the groups. node[1:3] means node1, node2
// and node3. node[01:10] means node01 to node10.
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

// expand returns the names that an item of a group means.
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

// unique removes repeated names. It reuses the memory of names.
func unique(names []string) []string {
	seen := make(map[string]bool, len(names))
	return slices.DeleteFunc(names, func(name string) bool {
		defer func() { seen[name] = true }()
		return seen[name]
	})
}

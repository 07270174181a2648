package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// limit is a compiled spread constraint. It puts clusters in groups by a field or label, and bounds
// the number of groups that the chosen clusters are in.
type limit struct {
	field    policyv1alpha1.SpreadFieldValue // "": by label
	label    string
	min, max int // max 0: no maximum
}

// newLimit compiles a spread constraint. A constraint without a field and a label groups by
// cluster: each cluster is a group. The minimum is at least 1.
func newLimit(s policyv1alpha1.SpreadConstraint) limit {
	l := limit{field: s.SpreadByField, label: s.SpreadByLabel, min: max(1, int(s.MinGroups)), max: int(s.MaxGroups)}
	if l.label == "" && l.field == "" {
		l.field = policyv1alpha1.SpreadByCluster
	}
	return l
}

// group returns the name of the group of a cluster; "" if the cluster lacks the field or label. The
// limit must not be by zone, for which a cluster can have several groups.
func (l *limit) group(c *Cluster) string {
	switch l.field {
	case policyv1alpha1.SpreadByCluster:
		return c.Name
	case policyv1alpha1.SpreadByRegion:
		return c.Region
	case policyv1alpha1.SpreadByProvider:
		return c.Provider
	case policyv1alpha1.SpreadByZone: // a cluster may have several zones
	}
	return c.Labels[l.label]
}

// has reports whether the cluster is in any group of the limit.
func (l *limit) has(c *Cluster) bool {
	if l.field == policyv1alpha1.SpreadByZone {
		return len(c.Zones) > 0
	}
	return l.group(c) != ""
}

// each calls f once for every group of the cluster. A cluster has several groups only by zone.
func (l *limit) each(c *Cluster, f func(group string)) {
	switch {
	case l.field == policyv1alpha1.SpreadByZone:
		for at, zone := range c.Zones {
			if !slices.Contains(c.Zones[:at], zone) {
				f(zone)
			}
		}
	case l.has(c):
		f(l.group(c))
	}
}

// alike reports whether two clusters are in the same groups of the limit. Zones in another order
// count as other groups.
func (l *limit) alike(a, b *Cluster) bool {
	if l.field == policyv1alpha1.SpreadByZone {
		return slices.Equal(a.Zones, b.Zones)
	}
	return l.group(a) == l.group(b)
}

// what returns the field or label by which the limit groups clusters, for messages.
func (l *limit) what() string {
	if l.field == "" {
		return "label " + l.label
	}
	return string(l.field)
}

// mostSteps bounds the steps of the search for clusters that meet all spread constraints at once;
// each step tries one cluster. Where a greedy choice suffices, the search takes one step for each
// needed cluster. Of clusters in the same groups only one is tried.
const mostSteps = 500

// spreading is the state of the search for options (clusters) that meet all limits (spread
// constraints).
type spreading struct {
	limits []limit
	// groups lists the groups of each option by limit, as numbers in order of appearance. Option i
	// has groups[l][from[l][i]:from[l][i+1]].
	groups, from [][]int32
	counts       [][]int32 // chosen options by limit and group
	distinct     []int     // by limit: groups with a chosen option
	chosen       []bool
	steps        int
}

// newSpreading returns the state of a search in which no option is chosen.
func newSpreading(limits []limit, options []option) *spreading {
	s := &spreading{
		limits: limits, groups: make([][]int32, len(limits)), from: make([][]int32, len(limits)),
		counts: make([][]int32, len(limits)), distinct: make([]int, len(limits)), chosen: make([]bool, len(options)),
	}
	for l := range limits {
		by := &limits[l]
		numbers := map[string]int32{}
		number := func(group string) {
			n, met := numbers[group]
			if !met {
				n = int32(len(numbers)) //nolint:gosec // at most the clusters' zones
				numbers[group] = n
			}
			s.groups[l] = append(s.groups[l], n)
		}
		s.groups[l], s.from[l] = make([]int32, 0, len(options)), make([]int32, 0, len(options)+1)
		for i := range options {
			s.from[l] = append(s.from[l], int32(len(s.groups[l]))) //nolint:gosec // the same
			by.each(options[i].cluster, number)
		}
		s.from[l] = append(s.from[l], int32(len(s.groups[l]))) //nolint:gosec // the same
		s.counts[l] = make([]int32, len(numbers))
	}
	return s
}

// of returns the groups of option i for limit l, as numbers.
func (s *spreading) of(l, i int) []int32 { return s.groups[l][s.from[l][i]:s.from[l][i+1]] }

// put adds option i to the chosen options if in is true, and otherwise removes it from them. The
// option must not be in that state already.
func (s *spreading) put(i int, in bool) {
	s.chosen[i] = in
	for l := range s.limits {
		for _, g := range s.of(l, i) {
			if in {
				if s.counts[l][g]++; s.counts[l][g] == 1 {
					s.distinct[l]++
				}
			} else if s.counts[l][g]--; s.counts[l][g] == 0 {
				s.distinct[l]--
			}
		}
	}
}

// clear removes all options from the chosen options.
func (s *spreading) clear() {
	for i, in := range s.chosen {
		if in {
			s.put(i, false)
		}
	}
}

// gain returns how many groups option i would add that the minimums still lack, summed over the
// limits. allowed is false if option i would exceed the maximum of a limit.
func (s *spreading) gain(i int) (gain int, allowed bool) {
	for l := range s.limits {
		fresh := 0
		for _, g := range s.of(l, i) {
			if s.counts[l][g] == 0 {
				fresh++
			}
		}
		if limit := &s.limits[l]; limit.max > 0 && s.distinct[l]+fresh > limit.max {
			return 0, false
		} else if missing := limit.min - s.distinct[l]; missing > 0 {
			gain += min(fresh, missing)
		}
	}
	return gain, true
}

// alike reports whether two options are in the same groups, apart from limits by cluster.
func (s *spreading) alike(a, b int) bool {
	for l := range s.limits {
		if s.limits[l].field != policyv1alpha1.SpreadByCluster && !slices.Equal(s.of(l, a), s.of(l, b)) {
			return false
		}
	}
	return true
}

// met reports whether the chosen options meet the minimum of every limit.
func (s *spreading) met() bool {
	for l := range s.limits {
		if s.distinct[l] < s.limits[l].min {
			return false
		}
	}
	return true
}

// meet adds options to the chosen ones until every limit has its minimum of groups, and reports
// success. It tries the options that add the most groups first, and equal ones in their order. It
// gives up after mostSteps. Without success, the chosen options are as before the call.
func (s *spreading) meet() bool {
	if s.met() {
		return true
	}
	gains, most := make([]int, len(s.chosen)), 0
	for i, in := range s.chosen {
		if in {
			continue
		}
		if gain, allowed := s.gain(i); allowed {
			gains[i], most = gain, max(most, gain)
		}
	}
	var tried []int
	for gain := most; gain > 0; gain-- {
		for i := range gains {
			if gains[i] != gain || slices.ContainsFunc(tried, func(other int) bool { return s.alike(i, other) }) {
				continue
			}
			if s.steps++; s.steps > mostSteps {
				return false
			}
			s.put(i, true)
			if s.meet() {
				return true
			}
			s.put(i, false)
			tried = append(tried, i)
		}
	}
	return false
}

// fill adds, in order, every other option that exceeds no maximum to the chosen options.
func (s *spreading) fill() {
	for i, in := range s.chosen {
		if in {
			continue
		}
		if _, allowed := s.gain(i); allowed {
			s.put(i, true)
		}
	}
}

// missing returns a message about the limits whose minimum all options together cannot meet,
// because they are in too few groups; "" if there is none.
func (s *spreading) missing() string {
	var few []string
	for l := range s.limits {
		if limit := &s.limits[l]; len(s.counts[l]) < limit.min {
			few = append(few, fmt.Sprintf("%d of %d by %s", len(s.counts[l]), limit.min, limit.what()))
		}
	}
	if len(few) == 0 {
		return ""
	}
	return "the clusters that fit are in too few groups for spreadConstraints: " + strings.Join(few, ", ")
}

// conflict returns the message for limits that no choice meets together, although there are enough
// groups for each. It names only limits with a maximum or a minimum above 1, because any cluster
// meets the others.
func conflict(limits []limit) string {
	var names []string
	for l := range limits {
		if limits[l].min > 1 || limits[l].max > 0 {
			names = append(names, limits[l].what())
		}
	}
	return "no choice among the clusters that fit meets all spreadConstraints: by " + strings.Join(names, ", ")
}

// spread chooses the options that meet all limits, and as many more as exceed no maximum. Options
// are sorted by preference. The first try chooses all options that keep the object, as far as they
// exceed no maximum. If the minimums cannot be met with these, the second try ignores which options
// keep the object.
//
// spread sets needed on the options that were chosen to meet the minimums, and on those that keep
// the object after the first try: they get a replica before others. If no choice is possible, or
// none is found within mostSteps, chosen is nil and why is a message.
func spread(limits []limit, options []option) (chosen []option, why string) {
	s := newSpreading(limits, options)
	if why := s.missing(); why != "" {
		return nil, why
	}
	for i := range options {
		if options[i].keep {
			if _, allowed := s.gain(i); allowed {
				s.put(i, true)
			}
		}
	}
	if !s.meet() {
		s.clear()
		if s.steps = 0; !s.meet() {
			return nil, conflict(limits)
		}
	}
	needed := slices.Clone(s.chosen)
	s.fill()
	for i := range options {
		if s.chosen[i] {
			options[i].needed = needed[i]
			chosen = append(chosen, options[i])
		}
	}
	return chosen, ""
}

// rank sets the rank of the options by the total capacity of their groups, for the limits with a
// maximum. A limit that admits few groups should admit the largest groups, not the group of the
// largest cluster. In each group only as many clusters count as may be chosen. Without such a
// limit, except by cluster, rank changes nothing.
func rank(limits []limit, options []option) {
	most, bounding := len(options), []*limit{}
	for l := range limits {
		switch limit := &limits[l]; {
		case limit.max == 0:
		case limit.field == policyv1alpha1.SpreadByCluster:
			most = min(most, limit.max)
		default:
			bounding = append(bounding, limit)
		}
	}
	if len(bounding) == 0 {
		return
	}
	type ranked struct {
		*option
		capacity []int64 // by limit: of the largest group of the option
	}
	all := make([]ranked, len(options))
	for i := range options {
		all[i] = ranked{&options[i], make([]int64, len(bounding))}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Compare(b.has+b.option.capacity, a.has+a.option.capacity) })
	for l, limit := range bounding {
		clusters, capacity := map[string]int{}, map[string]int64{}
		for _, o := range all {
			limit.each(o.cluster, func(group string) {
				if clusters[group]++; clusters[group] <= most {
					capacity[group] += o.has + o.option.capacity
				}
			})
		}
		for _, o := range all {
			limit.each(o.cluster, func(group string) { o.capacity[l] = max(o.capacity[l], capacity[group]) })
		}
	}
	slices.SortFunc(all, func(a, b ranked) int { return slices.Compare(b.capacity, a.capacity) })
	for i, o := range all[1:] {
		if o.rank = all[i].rank; !slices.Equal(o.capacity, all[i].capacity) {
			o.rank++
		}
	}
}

// needed returns the number of options with the field needed.
func needed(options []option) (n int32) {
	for i := range options {
		if options[i].needed {
			n++
		}
	}
	return n
}

// fewest sets needed on at most n options that meet the minimums of the limits with few clusters,
// and clears needed on the others. Options that keep the object are taken first. Among equal ones,
// those that add the most groups come first, then the order counts.
func fewest(limits []limit, options []option, n int32) {
	s := newSpreading(limits, options)
	for _, kept := range []bool{true, false} {
		for n > 0 {
			best, most := -1, 0
			for i := range options {
				if s.chosen[i] || kept && !options[i].keep {
					continue
				}
				if gain, _ := s.gain(i); gain > most {
					best, most = i, gain
				}
			}
			if best < 0 {
				break
			}
			s.put(best, true)
			n--
		}
	}
	for i := range options {
		options[i].needed = s.chosen[i]
	}
}

package plan

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/neutral"
)

// Print writes the changes as text for the user: by host and stage, one per line. Then follow the
// steps on the cluster, the order of the hosts if it disturbs anything, a summary, outages and the
// hash. A host on which everything is undone has one line. Control characters are replaced, and
// errors of w are ignored.
func (c *Changes) Print(w io.Writer) { c.print(w, false) }

// PrintDetail writes what Print writes, and also diffs, the content from external sources, and each
// step of hosts on which everything is undone.
func (c *Changes) PrintDetail(w io.Writer) { c.print(w, true) }

// signs are the characters that Print writes before a change, by Op.
var signs = map[Op]string{OpAdd: "+", OpChange: "~", OpRepair: "!", OpRemove: "-"}

// print implements Print, and with detail PrintDetail.
func (c *Changes) print(w io.Writer, detail bool) {
	var b strings.Builder
	host, stage := "", StageID("")
	for _, item := range c.Items {
		if item.ofCluster() {
			continue
		}
		if !detail && slices.Contains(c.Undone, item.Host) {
			if host != item.Host {
				_ = neutral.Fprintf(&b, "%s\n    - %s\n", item.Host, c.undone(item.Host))
			}
			host = item.Host
			continue
		}
		if item.Host != host {
			_ = neutral.Fprintf(&b, "%s\n", item.Host)
			stage = "none yet"
		}
		if item.Stage != stage {
			_ = neutral.Fprintf(&b, "  %s\n", section(item))
		}
		host, stage = item.Host, item.Stage
		_ = neutral.Fprintf(&b, "    %s %s\n", signs[item.Op], item.line())
		if detail {
			for line := range strings.Lines(item.Detail) {
				_ = neutral.Fprintf(&b, "        %s\n", strings.TrimSuffix(line, "\n"))
			}
		}
	}
	if lines := c.clusterLines(); len(lines) > 0 {
		b.WriteString("the cluster as a whole\n")
		for _, line := range lines {
			_ = neutral.Fprintf(&b, "    %s\n", line)
		}
	}
	if c.Rollout != nil && slices.ContainsFunc(c.Rollout.Waves, Wave.Disturbs) {
		b.WriteString("in this order\n")
		c.Rollout.Print(&b)
	}
	if detail {
		c.Content.list(&b)
	}
	_ = neutral.Fprintf(&b, "%s\n", c.Summary())
	for _, outage := range c.Outages {
		_ = neutral.Fprintf(&b, "Outage: %s.\n", outage)
	}
	_ = neutral.Fprintf(&b, "plan %s\n", c.Hash)
	_, _ = io.WriteString(w, b.String()) // ignored as fmt.Println does
}

// HostLines has hosts that all have the same changes, and one line of text for each of these
// changes.
type HostLines struct{ Hosts, Lines []string }

// clusterLines returns the changes of objects, and the steps on the cluster as a whole, as lines of
// text.
func (c *Changes) clusterLines() []string {
	var lines []string
	for _, item := range c.Items {
		if item.ofCluster() {
			lines = append(lines, signs[item.Op]+" "+item.line())
		}
	}
	for _, line := range stepLines(c.Steps) {
		lines = append(lines, "* "+line)
	}
	return lines
}

// Lines returns the changes as the lines that Print writes, without the lines of stages. Hosts with
// the same changes share an element. The changes of the cluster come last, with the given name as
// their only host. A host on which everything is undone has a line for each step.
func (c *Changes) Lines(cluster string) []HostLines {
	var hosts []string
	of := map[string][]string{}
	for _, item := range c.Items {
		if item.ofCluster() {
			continue
		}
		if of[item.Host] == nil {
			hosts = append(hosts, item.Host)
		}
		of[item.Host] = append(of[item.Host], signs[item.Op]+" "+item.line())
	}
	var all []HostLines
	for _, host := range hosts {
		if i := slices.IndexFunc(all, func(l HostLines) bool { return slices.Equal(l.Lines, of[host]) }); i >= 0 {
			all[i].Hosts = append(all[i].Hosts, host)
		} else {
			all = append(all, HostLines{[]string{host}, of[host]})
		}
	}
	if lines := c.clusterLines(); len(lines) > 0 {
		all = append(all, HostLines{[]string{cluster}, lines})
	}
	return all
}

// undone returns one text for all that is undone on a host: the number of steps and the worst
// disruption.
func (c *Changes) undone(host string) string {
	steps, worst := 0, DisruptionNone
	for _, i := range c.Items {
		if i.Host == host {
			steps++
			if Worse(i.Disruption, worst) {
				worst = i.Disruption
			}
		}
	}
	return fmt.Sprintf("all that was done: %d steps [%s]", steps, worst)
}

// list writes the content to b, one line for each file, source of objects and image. It writes
// nothing if there is no content.
func (c Content) list(b *strings.Builder) {
	if len(c.Files)+len(c.Objects)+len(c.Images) > 0 {
		b.WriteString("content\n")
	}
	for _, f := range c.Files {
		_ = neutral.Fprintf(b, "    file %s %s\n", f.URL, f.Digest)
	}
	for _, o := range c.Objects {
		for _, s := range o.Sources {
			_ = neutral.Fprintf(b, "    objects of %s: %s\n", o.Group, s)
		}
	}
	for _, i := range c.Images {
		_ = neutral.Fprintf(b, "    image %s for %s\n", i.Reference, i.For)
	}
}

// section returns the heading under which Print shows a change: its stage, or a text for a step
// that is no longer planned.
func section(c Change) string {
	if c.Stage == "" {
		return "no longer planned"
	}
	return string(c.Stage)
}

// line returns the change as one line of text, without the sign of its Op and without the host.
func (c Change) line() string {
	words := []string{c.Kind, c.Target}
	if c.Kind == "" || c.Target == "" {
		words = []string{c.Kind, c.Step}
	}
	if c.Op == OpRepair && c.Kind != "" {
		words = append(words, "(repaired)")
	}
	if c.Disruption != DisruptionNone {
		words = append(words, "["+string(c.Disruption)+"]")
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// Summary returns one line: the number of hosts, how many changes there are of each Op, and how
// many disturb something. Without changes it is "Nothing to do.".
func (c *Changes) Summary() string {
	if c.Nothing() {
		return "Nothing to do."
	}
	hosts := map[string]bool{}
	ops, objects := map[Op]int{}, map[Op]int{}
	disturbing := map[Disruption]int{}
	for _, item := range c.Items {
		if item.ofCluster() {
			objects[item.Op]++
			continue
		}
		hosts[item.Host] = true
		ops[item.Op]++
		disturbing[item.Disruption]++
	}
	for _, s := range c.Steps {
		disturbing[s.Disruption()]++
	}
	var done, disturbs []string
	for _, op := range []Op{OpAdd, OpChange, OpRepair, OpRemove} {
		if n := ops[op]; n > 0 {
			done = append(done, fmt.Sprintf("%d to %s", n, op))
		}
	}
	for _, op := range []Op{OpAdd, OpChange, OpRepair, OpRemove} {
		switch n := objects[op]; n {
		case 0:
		case 1:
			done = append(done, fmt.Sprintf("1 object to %s", op))
		default:
			done = append(done, fmt.Sprintf("%d objects to %s", n, op))
		}
	}
	for _, d := range slices.Backward(disruptions[1:]) {
		if n := disturbing[d]; n > 0 {
			disturbs = append(disturbs, fmt.Sprintf("%d %s", n, d))
		}
	}
	if n := len(c.Steps); n > 0 {
		done = append(done, fmt.Sprintf("%d to do in the cluster", n))
	}
	where := "1 host"
	if len(hosts) != 1 {
		where = fmt.Sprintf("%d hosts", len(hosts))
	}
	summary := fmt.Sprintf("%s: %s.", where, strings.Join(done, ", "))
	if len(disturbs) == 0 {
		return summary + " Nothing that runs is disturbed."
	}
	return summary + " Disruption: " + strings.Join(disturbs, ", ") + "."
}

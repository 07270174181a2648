package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// tables lists the existing nftables tables of the sweep. If the sweep has iptables chains, it
// includes the tables that iptables creates. Clear deletes those only if they are empty.
func (l *Linux) tables(ctx context.Context, sweep plan.Sweep) ([]string, error) {
	if len(sweep.Tables)+len(sweep.IPTablesPrefixes) == 0 || !has("nft") {
		return nil, nil
	}
	output, err := l.Run(ctx, []string{"nft", "list", "tables"}, "")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(output) {
		table, ok := strings.CutPrefix(strings.TrimSpace(line), "table ")
		if ok && (slices.Contains(sweep.Tables, table) || implied(sweep, table)) {
			found = append(found, table)
		}
	}
	return found, nil
}

// implied reports whether iptables created the table and the sweep does not name it.
func implied(sweep plan.Sweep, table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return len(sweep.IPTablesPrefixes) > 0 && !slices.Contains(sweep.Tables, table) &&
		(family == "ip" || family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, name)
}

// tableIsEmpty reports whether a table has no rules, and only chains that the kernel calls.
func (l *Linux) tableIsEmpty(ctx context.Context, table string) bool {
	output, err := l.Run(ctx, append([]string{"nft", "-j", "list", "table"}, strings.Fields(table)...), "")
	if err != nil {
		return false
	}
	var listing struct {
		Nftables []map[string]struct {
			Hook   string `json:"hook"`
			Policy string `json:"policy"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(output), &listing); err != nil {
		return false
	}
	for _, object := range listing.Nftables {
		for kind, o := range object {
			base := kind == "chain" && o.Hook != "" && (o.Policy == "" || o.Policy == "accept")
			if kind != "metainfo" && kind != "table" && !base {
				return false
			}
		}
	}
	return true
}

func (l *Linux) deleteTable(ctx context.Context, table string) error {
	_, err := l.Run(ctx, append([]string{"nft", "delete", "table"}, strings.Fields(table)...), "")
	return err
}

// iptablesCommands are the commands of both families and both backends.
var iptablesCommands = []string{"iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"}

// chains lists the chains with one of the prefixes, as command, table and name.
func (l *Linux) chains(ctx context.Context, prefixes []string) []string {
	var found []string
	if len(prefixes) == 0 {
		return nil
	}
	for _, command := range iptablesCommands {
		if !has(command + "-save") {
			continue
		}
		output, err := l.Run(ctx, []string{command + "-save"}, "")
		if err != nil { // the kernel does not have this backend
			continue
		}
		var table string
		for line := range strings.Lines(output) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			}
			name, ok := strings.CutPrefix(line, ":")
			name, _, _ = strings.Cut(name, " ")
			if ok && slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				found = append(found, command+" "+table+" "+name)
			}
		}
	}
	return found
}

// deleteChains deletes chains, in the form that chains returns, and rules of other chains that jump
// to them.
func (l *Linux) deleteChains(ctx context.Context, chains []string) error {
	for _, command := range iptablesCommands {
		ours := make(map[string][]string) // by table
		for _, chain := range chains {
			if fields := strings.Fields(chain); fields[0] == command {
				ours[fields[1]] = append(ours[fields[1]], fields[2])
			}
		}
		if len(ours) == 0 {
			continue
		}
		output, err := l.Run(ctx, []string{command + "-save"}, "")
		if err != nil {
			return err
		}
		restore := withoutChains(output, ours)
		if restore == "" { // the chains were deleted under the backend's other name
			continue
		}
		if _, err := l.Run(ctx, []string{command + "-restore", "--noflush"}, restore); err != nil {
			return fmt.Errorf("delete chains: %w", err)
		}
	}
	return nil
}

// withoutChains turns the output of iptables-save into input of iptables-restore that deletes
// chains. It deletes the rules that jump to them, their content, and the chains. Each table changes
// at once.
func withoutChains(saved string, ours map[string][]string) string {
	var all strings.Builder
	var table string
	var jumps, there []string
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, jumps, there = line[1:], nil, nil
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			if slices.Contains(ours[table], name) {
				there = append(there, name)
			}
		case strings.HasPrefix(line, "-A "):
			chain, target := ruleOf(line)
			if !slices.Contains(ours[table], chain) && slices.Contains(ours[table], target) {
				jumps = append(jumps, "-D"+strings.TrimPrefix(line, "-A"))
			}
		case line == "COMMIT" && len(there) > 0:
			fmt.Fprintf(&all, "*%s\n", table)
			for _, jump := range jumps {
				fmt.Fprintln(&all, jump)
			}
			for _, name := range there {
				fmt.Fprintf(&all, "-F %s\n", name)
			}
			for _, name := range there {
				fmt.Fprintf(&all, "-X %s\n", name)
			}
			all.WriteString("COMMIT\n")
		}
	}
	return all.String()
}

// ruleOf returns the chain of a rule and the chain that it jumps to. It ignores -j and -g in a
// quoted comment.
func ruleOf(rule string) (chain, target string) {
	fields := strings.Fields(rule)
	chain = fields[1]
	quoted := false
	for i, field := range fields {
		if !quoted && (field == "-j" || field == "-g") && i+1 < len(fields) {
			target = fields[i+1]
		}
		if strings.Count(strings.ReplaceAll(field, `\"`, ""), `"`)%2 == 1 {
			quoted = !quoted
		}
	}
	return chain, target
}

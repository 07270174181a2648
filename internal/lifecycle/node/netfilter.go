package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// tables lists the swept nftables tables that there are. Where iptables chains are swept, the tables that iptables makes
// are among them: they go if they are empty afterwards.
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

// implied says whether a table is one of those that iptables makes, and not swept by its name.
func implied(sweep plan.Sweep, table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return len(sweep.IPTablesPrefixes) > 0 && !slices.Contains(sweep.Tables, table) &&
		(family == "ip" || family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, name)
}

// tableIsEmpty is true for a table without rules in which there are only the chains that the kernel calls.
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

// iptablesCommands are those of both families, and of both backends where both are installed.
var iptablesCommands = []string{"iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"}

// chains lists the chains with a prefix, as command, table and name.
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
		if err != nil { // a backend that this kernel does not have has no chains
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

// deleteChains deletes chains, as chains lists them, and the rules of other chains that lead to them.
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
		if restore == "" { // the other name of the same backend did it
			continue
		}
		if _, err := l.Run(ctx, []string{command + "-restore", "--noflush"}, restore); err != nil {
			return fmt.Errorf("delete chains: %w", err)
		}
	}
	return nil
}

// withoutChains turns what iptables-save prints into what iptables-restore needs to delete chains: rules that lead to them
// first, then what is in them, then the chains themselves. Each table is changed at once.
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

// ruleOf returns the chain that a rule is in and the chain that it leads to. A comment, in quotes, may have blanks in it,
// but what comes before -j or -g in it is within the quotes.
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

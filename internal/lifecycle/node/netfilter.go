package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// tables lists the existing nftables tables that the sweep must remove, as family and name. These
// are the tables that it names. If it has prefixes of iptables chains, they are also the tables
// that iptables creates, which Clear deletes only if they are empty.
//
// The list is nil if the sweep has neither, or if the host has no nft.
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

// implied reports whether a sweep covers a table, given as family and name, only because iptables
// creates that table. The sweep then has prefixes of iptables chains and does not name the table.
func implied(sweep plan.Sweep, table string) bool {
	family, name, _ := strings.Cut(table, " ")
	return len(sweep.IPTablesPrefixes) > 0 && !slices.Contains(sweep.Tables, table) &&
		(family == "ip" || family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, name)
}

// tableIsEmpty reports whether an nftables table, given as family and name, has no rules, and only
// base chains with the policy accept. It is false if the table cannot be read.
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

// deleteTable deletes an nftables table, given as family and name, with its content.
func (l *Linux) deleteTable(ctx context.Context, table string) error {
	_, err := l.Run(ctx, append([]string{"nft", "delete", "table"}, strings.Fields(table)...), "")
	return err
}

// iptablesCommands are the iptables commands for IPv4 and IPv6: the default one, and those of the
// legacy and the nftables backend.
var iptablesCommands = []string{"iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"}

// chains lists the iptables chains whose names begin with one of the prefixes, as command, table
// and name. It leaves out commands that the host does not have, and commands that fail.
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

// deleteChains deletes iptables chains, and the rules of other chains that jump to them. chains are
// in the form that the method chains returns. Chains that no longer exist are ignored.
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

// withoutChains returns the input of iptables-restore that deletes chains, with their rules and the
// rules of other chains that jump to them. saved is the output of iptables-save. ours has the names
// of the chains to delete, by table.
//
// Each table is changed in one transaction. The result is "" if none of the chains exists.
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

// ruleOf returns the chain of a rule and the target that it jumps to, or "" without a target. rule
// is a line of iptables-save, such as "-A INPUT -j KUBE-SERVICES". Options in a quoted comment are
// ignored.
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

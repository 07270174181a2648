package cli

import (
	"encoding/json"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"orrery.dev/orrery/internal/lifecycle/balancer"
	"orrery.dev/orrery/internal/lifecycle/node"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/lifecycle/reach"
	"orrery.dev/orrery/internal/lifecycle/unit"
)

// newNode returns the commands that the engine runs on hosts. They speak JSON with it on standard input and output, and
// are of no use to people.
func newNode(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "node",
		Short:  "The agent on a host of a cluster; run by the other commands over SSH",
		Hidden: true,
		Args:   noArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "apply",
			Short: "Do the steps of the request on standard input",
			Args:  noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return node.New("").Apply(cmd.Context(), s.in, s.out)
			},
		},
		&cobra.Command{
			Use:   "observe",
			Short: "Say what was applied to this host and how it is now",
			Args:  noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				applied, err := node.New("").Observe(cmd.Context())
				if err != nil {
					return err
				}
				return json.NewEncoder(s.out).Encode(applied)
			},
		},
		&cobra.Command{
			Use:   "serve",
			Short: "Serve content to other hosts until standard input ends",
			Args:  noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return node.New("").Serve(cmd.Context(), s.in, ":0", s.out)
			},
		},
		&cobra.Command{
			Use:   "check",
			Short: "Find out which ports of other hosts can be reached, as the request on standard input says",
			Args:  noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				var req reach.Request
				if err := json.NewDecoder(s.in).Decode(&req); err != nil {
					return fmt.Errorf("read request: %w", err)
				}
				result, err := reach.Check(cmd.Context(), req)
				if err != nil {
					return err
				}
				return json.NewEncoder(s.out).Encode(result)
			},
		},
		newNodeSupervise(s),
		newNodeLoadBalancer(s),
	)
	return cmd
}

func newNodeSupervise(s streams) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "supervise",
		Short: "Keep the units of a host without systemd running",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(s, "text", 0)
			if err != nil {
				return err
			}
			return unit.Supervise(logr.NewContext(cmd.Context(), log), root)
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "directory that is the host's root")
	return cmd
}

func newNodeLoadBalancer(s streams) *cobra.Command {
	var listen, backends string
	cmd := &cobra.Command{
		Use:   "loadbalancer",
		Short: "Spread connections over the API servers of a cluster",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(s, "text", 0)
			if err != nil {
				return err
			}
			return balancer.Run(logr.NewContext(cmd.Context(), log), listen, backends)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", plan.LoadBalancer, "address to listen on")
	cmd.Flags().StringVar(&backends, "backends", "", "file with the host:port of each API server, one a line")
	return cmd
}

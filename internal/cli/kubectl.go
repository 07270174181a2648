package cli

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"orrery.dev/orrery/internal/hub"
)

func newKubectl(streams) *cobra.Command {
	return &cobra.Command{
		Use:   "kubectl [ARG ...]",
		Short: "Run the bundled kubectl against the hub, the fleet or a member",
		Long: `Run the bundled kubectl. Without --kubeconfig and KUBECONFIG it uses the kubeconfig
of the hub on this machine, whose contexts are hub, fleet (every cluster at once) and
one for each member.`,
		Example: `  orrery kubectl get clusters
  orrery kubectl --context fleet get pods -A`,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			binary, err := hub.FindKubeBinary("")
			if err != nil {
				return err
			}
			env := os.Environ()
			if os.Getenv("KUBECONFIG") == "" {
				if path, err := findKubeconfig(""); err == nil {
					env = append(env, "KUBECONFIG="+path)
				}
			}
			// kubectl replaces this process, and so handles terminal, signals and exit code
			// itself.
			err = syscall.Exec(binary, append([]string{"kubectl"}, args...), env)
			return fmt.Errorf("run %s: %w", binary, err)
		},
	}
}

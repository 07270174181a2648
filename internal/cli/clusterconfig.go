package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"orrery.dev/orrery/internal/lifecycle"
	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/config"
)

func newConfig(s streams) *cobra.Command {
	var (
		version     string
		fromCluster bool
		kubeconfig  string
		context     string
		out         string
	)
	cmd := &cobra.Command{
		Use:   "config NAME",
		Short: "Write a commented file that describes a cluster of hosts",
		Long: `Write a commented file that describes a cluster of hosts, to be edited: every field with
its default. With --from-cluster it describes a cluster that runs, as far as that can be
asked.`,
		Example: `  orrery cluster config oak > oak.yaml
  orrery cluster config elm --from-cluster --cluster-kubeconfig elm.kubeconfig -o elm.yaml`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if err := checkName(name); err != nil {
				return err
			}
			var content []byte
			switch {
			case fromCluster && version != "":
				return usageError{errors.New("--kubernetes-version and --from-cluster exclude each other: a cluster that runs has a version")}
			case fromCluster:
				rules := clientcmd.NewDefaultClientConfigLoadingRules()
				rules.ExplicitPath = kubeconfig
				cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
				if err != nil {
					return fmt.Errorf("read --cluster-kubeconfig: %w", err)
				}
				if content, err = config.FromCluster(cmd.Context(), cfg, name); err != nil {
					return fmt.Errorf("ask the cluster at %s: %w", cfg.Host, err)
				}
			case kubeconfig != "" || context != "":
				return usageError{errors.New("--cluster-kubeconfig and --cluster-context go with --from-cluster")}
			default:
				known, err := catalog.Load()
				if err != nil {
					return err
				}
				content = config.Template(name, cmp.Or(version, newest(known)))
			}
			if out == "" {
				_, err := exact(s.out).Write(content)
				return err
			}
			// Users will write passwords into the file, so only its owner may read it.
			file, err := os.OpenFile(out, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("--out: %s is there already: remove it, or choose another name", out)
			}
			if err != nil {
				return fmt.Errorf("--out: %w", err)
			}
			_, err = file.Write(content)
			return errors.Join(err, file.Close())
		},
	}
	cmd.Flags().StringVar(&version, "kubernetes-version", "", "version of Kubernetes in the file (default: the newest that is known)")
	cmd.Flags().BoolVar(&fromCluster, "from-cluster", false, "describe a cluster that runs")
	cmd.Flags().StringVar(&kubeconfig, "cluster-kubeconfig", "", "kubeconfig file of that cluster (default: as for kubectl)")
	cmd.Flags().StringVar(&context, "cluster-context", "", "context in that file (default: its current context)")
	cmd.Flags().StringVarP(&out, "out", "o", "", "file to write, which must not exist (default: standard output)")
	return cmd
}

// newest returns the newest Kubernetes version that a catalog supports, as MAJOR.MINOR.PATCH. If
// the catalog names only minor versions, the patch is 0.
func newest(c *catalog.Catalog) string {
	supported := c.Supported()
	last := supported[len(supported)-1]
	if strings.Count(last, ".") < 2 {
		last += ".0"
	}
	return last
}

func newClusterKubeconfig(s streams) *cobra.Command {
	var f stateFlags
	cmd := &cobra.Command{
		Use:   "kubeconfig NAME",
		Short: "Print the administrator's kubeconfig of a cluster that was built from here",
		Args:  oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := f.built(cmd.Context(), args[0]); err != nil {
				return err
			}
			content, err := readKubeconfig(f.files(), args[0])
			if err != nil {
				return err
			}
			_, err = exact(s.out).Write(content)
			return err
		},
	}
	f.add(cmd)
	return cmd
}

// readKubeconfig returns the administrator's kubeconfig that a run has stored for a cluster. If
// there is none, the error says that the API server of the cluster has never answered.
func readKubeconfig(files lifecycle.Files, name string) ([]byte, error) {
	content, err := os.ReadFile(files.Path(name, "kubeconfig"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %s has no kubeconfig yet: its API server never answered; see %q", name, "orrery operation list "+name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of cluster %s: %w", name, err)
	}
	return content, nil
}

package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"orrery.dev/orrery/internal/hub"
)

func newRotateKey(s streams) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Replace the key with which Secrets are encrypted in the hub's etcd",
		Long: `Replace the key with which Secrets are encrypted in the hub's etcd.

Run this where the hub runs, as the user that it runs as, while it runs. It goes on working
meanwhile. Every Secret is written once. This takes some minutes, because the API server looks
for new keys once in each; interrupted, it goes on where it was when it is run again.

The key is in encryption.yaml in the data directory. Back that file up again afterwards, apart
from the backups of etcd; backups of etcd that are older need the file that was backed up then.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := hub.RotateKey(cmd.Context(), dir, func(step string) error { return say(s.out, "%s\n", step) })
			if err != nil {
				return err
			}
			return say(s.out, "rotated; back up %s\n", filepath.Join(dir, "encryption.yaml"))
		},
	}
	cmd.Flags().StringVar(&dir, "data-dir", hub.DefaultDataDir(), "data directory of the hub")
	return cmd
}

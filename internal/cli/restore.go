package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// Names in a ConfigMap of the hub. In it orrery server reports that the hub seems to be restored
// from a backup, and "orrery server confirm-restore" confirms that the hub may continue.
const (
	restoreName        = "hub-restore"
	restoreState       = "state"
	restoreSince       = "since"
	restoreReason      = "reason"
	restoreConfirmed   = "Confirmed"
	restoreConfirmedAt = "orrery.dev/restore-confirmed"
)

// newConfirmRestore returns the command "orrery server confirm-restore".
func newConfirmRestore(s streams) *cobra.Command {
	var (
		f   hubFlags
		yes bool
	)
	cmd := &cobra.Command{
		Use:   "confirm-restore",
		Short: "Let a hub that was restored from a backup continue",
		Long: `Confirm that a hub that was restored from a backup may go on as the backup has it.

A hub that finds copies in its members which are newer than what it knows itself deletes
nothing and rolls nothing back until this is said. It then brings the members to what the
hub says, which undoes what was changed after the backup.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			_, c, err := f.client(ctx)
			if err != nil {
				return err
			}
			var said corev1.ConfigMap
			err = c.Get(ctx, types.NamespacedName{Namespace: clusterv1alpha1.SecretNamespace, Name: restoreName}, &said)
			if apierrors.IsNotFound(err) || err == nil && said.Data[restoreState] == "" {
				return say(s.out, "nothing to confirm: nothing suggests that this hub was restored from a backup\n")
			}
			if err != nil {
				return fmt.Errorf("read ConfigMap %s/%s: %w", clusterv1alpha1.SecretNamespace, restoreName, err)
			}
			if said.Data[restoreState] == restoreConfirmed {
				return say(s.out, "nothing to confirm: that was done at %s\n", said.Annotations[restoreConfirmedAt])
			}
			if err := say(s.out, "since %s this hub seems to have been restored from a backup: %s\n", said.Data[restoreSince], said.Data[restoreReason]); err != nil {
				return err
			}
			if !yes {
				if !s.interactive() {
					return usageError{errors.New("this asks before it confirms, and nobody is there to answer; add --yes")}
				}
				if err := s.confirm(ctx, "Bring the members to what this hub says, and undo there what is newer?"); err != nil {
					return err
				}
			}
			// Update and not patch, so that exactly the state that was shown is confirmed.
			said.Data[restoreState] = restoreConfirmed
			if said.Annotations == nil {
				said.Annotations = map[string]string{}
			}
			said.Annotations[restoreConfirmedAt] = time.Now().UTC().Format(time.RFC3339)
			if err := c.Update(ctx, &said); err != nil {
				return fmt.Errorf("confirm in ConfigMap %s/%s: %w", clusterv1alpha1.SecretNamespace, restoreName, err)
			}
			return say(s.out, "confirmed; the hub goes on\n")
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

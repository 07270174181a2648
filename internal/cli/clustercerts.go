package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/pki"
)

func newCerts(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "List and renew the certificates of a cluster that was built from here",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCertsList(s), newCertsRenew(s))
	return cmd
}

func newCertsList(s streams) *cobra.Command {
	var (
		f      stateFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "list NAME",
		Short: "List when the certificates of a cluster end",
		Long: `List the certificates that the hosts of a cluster have, and its authorities, the first to
end first. No host is asked: what was put on them is known. A certificate is due 60 days
before its end; then "orrery cluster apply" and "orrery cluster certs renew" renew it.`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			state, err := f.built(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			list := state.Certificates()
			if list == nil {
				list = []pki.Expiry{} // encoded as an empty list in JSON
			}
			return printValue(s.out, output, list, func(w io.Writer) error { return printCertificates(w, list, time.Now()) })
		},
	}
	f.add(cmd)
	addOutput(cmd, &output)
	return cmd
}

func printCertificates(w io.Writer, list []pki.Expiry, now time.Time) error {
	if len(list) == 0 {
		return say(w, "No certificates are known: the cluster is not built yet, or its state has no keys.\n")
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_ = say(t, "CERTIFICATE\tAUTHORITY\tENDS\tLEFT\tSTATE\n") // Flush reports it
	for _, e := range list {
		state, left := "valid", "none"
		switch {
		case !now.Before(e.NotAfter):
			state = "expired"
		case e.Near(now):
			state = "due"
		}
		if now.Before(e.NotAfter) {
			left = duration.HumanDuration(e.NotAfter.Sub(now))
		}
		authority := e.Authority
		if e.IsAuthority() {
			authority = "itself"
		}
		_ = say(t, "%s\t%s\t%s\t%s\t%s\n", e.Name, authority, e.NotAfter.UTC().Format(time.RFC3339), left, state)
	}
	return t.Flush()
}

func newCertsRenew(s streams) *cobra.Command {
	var (
		f      runFlags
		logins loginsFlag
	)
	cmd := &cobra.Command{
		Use:   "renew NAME",
		Short: "Renew the certificates of a cluster that end within 60 days, or have ended",
		Long: `Renew the certificates of a cluster that was built from here which end within 60 days, or
have ended, and change nothing else: not even what a run began that failed. The new ones
are put on all hosts; then what reads them only at its start is restarted, control planes
one after another, workers as many at a time as --max-unavailable allows. No pod is moved.
The administrator's kubeconfig is renewed with them. A host that cannot be reached or logged
in to keeps its certificates; if only its login has changed, name a file with the present
one with -f.`,
		Example: `  orrery cluster certs list oak
  orrery cluster certs renew oak
  orrery cluster certs renew oak -f oak.yaml`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), args[0]
			if err := f.check(); err != nil {
				return err
			}
			state, err := f.built(ctx, name)
			if err != nil {
				return err
			}
			if state.Applied == nil {
				return fmt.Errorf("cluster %s is not built yet: it has no certificates to renew", name)
			}
			present, err := logins.read(s, name)
			if err != nil {
				return err
			}
			list := state.Certificates()
			if len(list) == 0 {
				return fmt.Errorf("the state of cluster %s has no keys: restore it from a backup", name)
			}
			due := slices.DeleteFunc(slices.Clone(list), func(e pki.Expiry) bool { return !e.Due(time.Now()) })
			if len(due) == 0 {
				return say(s.out, "cluster %s: no certificate ends within %s; the first, %s, ends at %s\n",
					name, duration.HumanDuration(pki.RenewBefore), list[0].Name, list[0].NotAfter.UTC().Format(time.RFC3339))
			}
			e, err := f.engine(name, newRunProgress(s.err, f.verbose))
			if err != nil {
				return err
			}
			e.Logins = present
			question := fmt.Sprintf("Renew %d certificates of cluster %s? What reads them is restarted, host after host; no pod is moved.", len(due), name)
			switch {
			case f.yes:
			case !s.interactive():
				return errNeedsYes
			default:
				if err := s.confirm(ctx, question); err != nil {
					return err
				}
			}
			if err := start(ctx, e, f.operation(name, lifecyclev1alpha1.ActionRenewCertificates), nil); err != nil {
				return err
			}
			return say(s.out, "cluster %s: %d certificates were renewed\nkubeconfig: %s\n", name, len(due), f.files().Path(name, "kubeconfig"))
		},
	}
	f.add(cmd)
	logins.add(cmd)
	return cmd
}

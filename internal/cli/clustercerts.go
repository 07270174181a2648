package cli

import (
	"cmp"
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
		Short: "List when the certificates of a cluster expire",
		Long: `List the certificates that the hosts of a cluster have, and its authorities, the first to
end first. No host is asked: what was put on them is known. A certificate is due 60 days
before its end; then "orrery cluster apply" and "orrery cluster certs renew" renew it.

Nothing renews what is ending: an authority that ends within a year, and a certificate that
is due but cannot outlive its authority. Replace the cluster by a new one before the
authority ends.`,
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

// printCertificates prints a table of certificates with their authorities and expiries. The state
// of each at the time now is valid, due, ending or expired. A certificate that is ending is not
// renewed; see isEnding.
func printCertificates(w io.Writer, list []pki.Expiry, now time.Time) error {
	if len(list) == 0 {
		return say(w, "No certificates are known: the cluster is not built yet, or its state has no keys.\n")
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_ = say(t, "CERTIFICATE\tAUTHORITY\tENDS\tLEFT\tSTATE\n") // Flush returns the error
	for _, e := range list {
		state, left := "valid", "none"
		switch {
		case !now.Before(e.NotAfter):
			state = "expired"
		case e.Due(now):
			state = "due"
		case isEnding(e, now):
			state = "ending"
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

// isEnding reports whether a certificate ends soon, or has ended, and a renewal does not change
// that. It is true for an authority that ends within pki.LeafLifetime of now. It is also true for a
// certificate that ends within pki.RenewBefore with its authority.
func isEnding(e pki.Expiry, now time.Time) bool {
	return !e.Due(now) && (e.Near(now) || now.Add(pki.RenewBefore).After(e.NotAfter))
}

// nothingDue says why no certificate in list is renewed at the time now, for a list without any
// that is due. list has the earliest expiry first, and is not empty. If certificates end within
// pki.RenewBefore, the text names their authority and the way out.
func nothingDue(list []pki.Expiry, now time.Time) string {
	within := duration.HumanDuration(pki.RenewBefore)
	first := list[0]
	if !now.Add(pki.RenewBefore).After(first.NotAfter) {
		return fmt.Sprintf("no certificate ends within %s; the first, %s, ends at %s", within, first.Name, first.NotAfter.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("nothing was renewed: authority %s ends at %s, and no certificate that it signs can end later; authorities are not renewed: replace the cluster by a new one",
		cmp.Or(first.Authority, first.Name), first.Limit.UTC().Format(time.RFC3339))
}

func newCertsRenew(s streams) *cobra.Command {
	var (
		f      runFlags
		logins loginsFlag
	)
	cmd := &cobra.Command{
		Use:   "renew NAME",
		Short: "Renew the certificates of a cluster that expire within 60 days or have expired",
		Long: `Renew the certificates of a cluster that was built from here which end within 60 days, or
have ended, and change nothing else: not even what a run began that failed. Authorities are
not renewed, and no certificate outlives its own: see "orrery cluster certs list". The new
ones are put on all hosts; then what reads them only at its start is restarted, control planes
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
			now := time.Now()
			due := slices.DeleteFunc(slices.Clone(list), func(e pki.Expiry) bool { return !e.Due(now) })
			if len(due) == 0 {
				return say(s.out, "cluster %s: %s\n", name, nothingDue(list, now))
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

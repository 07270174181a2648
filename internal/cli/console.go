package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
	"orrery.dev/orrery/internal/neutral"
)

func newConsole(s streams) *cobra.Command {
	var (
		f                  hubFlags
		noBrowser, printed bool
	)
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the console in a browser, as the user of the kubeconfig",
		Long: `Ask the hub for a link that opens the console as the user of the kubeconfig, print it, and
open it in a browser if there is one. The link works once, for 30 seconds: keep it secret, it opens
a session of that user. The session ends after 12 hours, or when you sign out.`,
		Example: `  orrery console
  orrery console --no-browser
  orrery console --print`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := f.api(cmd.Context(), s.err)
			if err != nil {
				return err
			}
			link, err := consoleLink(cmd.Context(), api.config)
			if err != nil {
				return err
			}
			if printed {
				return say(s.out, "%s\n", link.URL)
			}
			if err := say(s.out, "Open this link within %s; it works once:\n  %s\n", time.Until(link.Expires.Time).Round(time.Second), link.URL); err != nil {
				return err
			}
			if noBrowser {
				return nil
			}
			return openBrowser(cmd.Context(), s.err, link.URL)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "print the link, and open no browser")
	cmd.Flags().BoolVar(&printed, "print", false, "print the link alone, for a script, and open no browser")
	return cmd
}

// consoleLink requests a link that opens the console in a browser, as the user of the configuration
// hub. Each call makes a new link, which works once and for 30 seconds. If the hub is too old to
// have a console, the error says so.
func consoleLink(ctx context.Context, hub *rest.Config) (fleetv1alpha1.ConsoleLinkStatus, error) {
	var made fleetv1alpha1.ConsoleLink
	asJSON := dynamic.ConfigFor(hub)
	asJSON.GroupVersion, asJSON.Timeout = &schema.GroupVersion{}, 30*time.Second
	c, err := rest.UnversionedRESTClientFor(asJSON)
	if err != nil {
		return made.Status, fmt.Errorf("reach the hub at %s: %w", hub.Host, err)
	}
	body, err := c.Post().AbsPath(fleetv1alpha1.ConsoleLinksPath).Do(ctx).Raw()
	if err != nil {
		err = refusalIn(body, err)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			err = errors.New("it serves no console: its orrery server is older than this command, or it is not a hub")
		}
		return made.Status, fmt.Errorf("ask the hub at %s for a link to the console: %w", hub.Host, err)
	}
	if err := json.Unmarshal(body, &made); err != nil || made.Status.URL == "" {
		return made.Status, errors.New("read the hub's link to the console: its answer has none")
	}
	return made.Status, nil
}

// openBrowser opens a URL in the user's browser and waits until the program for that has ended.
// Without a display or without that program it does nothing. If the program fails, it prints that
// to w. Only an error of w is returned.
func openBrowser(ctx context.Context, w io.Writer, url string) error {
	program := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		program = "open"
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return nil // the user can open the printed link
	}
	if out, err := exec.CommandContext(ctx, program, url).CombinedOutput(); err != nil && !errors.Is(err, exec.ErrNotFound) {
		return say(w, "No browser could be opened (%v): open the link yourself\n  %s\n", err, neutral.Indented(string(out)))
	}
	return nil
}

// printConsole prints a new link to the console of a demo, and the command for another link. If the
// demo has no console, it prints that and returns nil.
func printConsole(ctx context.Context, w io.Writer, hub *rest.Config, kubeconfig string) error {
	link, err := consoleLink(ctx, hub)
	if apierrors.ReasonForError(err) == fleetv1alpha1.ReasonNoConsole {
		return say(w, "\nThere is no console: %v\n", err)
	}
	if err != nil {
		return err
	}
	return say(w, `
The console; this link works once, within %s (your browser will warn about the certificate of the demo):
  %s
For a new link:
  orrery console --kubeconfig=%s
`, time.Until(link.Expires.Time).Round(time.Second), link.URL, kubeconfig)
}

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
open it in a browser where there is one. It is good once, for half a minute: whoever has it
until then is that user. The session that it opens ends after 12 hours, or by logging out.`,
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
			if err := say(s.out, "Open within %s, once:\n  %s\n", time.Until(link.Expires.Time).Round(time.Second), link.URL); err != nil {
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

// consoleLink requests a link to the console from a hub.
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
			err = errors.New("it serves no console: orrery server there is older than this command, or it is no hub")
		}
		return made.Status, fmt.Errorf("ask the hub at %s for a link to the console: %w", hub.Host, err)
	}
	if err := json.Unmarshal(body, &made); err != nil || made.Status.URL == "" {
		return made.Status, errors.New("read the hub's link to the console: its answer has none")
	}
	return made.Status, nil
}

// openBrowser opens a URL, if there is a browser.
func openBrowser(ctx context.Context, w io.Writer, url string) error {
	program := "xdg-open"
	switch {
	case runtime.GOOS == "darwin":
		program = "open"
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return nil // the link is printed
	}
	if out, err := exec.CommandContext(ctx, program, url).CombinedOutput(); err != nil && !errors.Is(err, exec.ErrNotFound) {
		return say(w, "No browser could be opened (%v): open the link yourself\n  %s\n", err, neutral.Indented(string(out)))
	}
	return nil
}

// printConsole prints how to open the console of a demo.
func printConsole(ctx context.Context, w io.Writer, hub *rest.Config, kubeconfig string) error {
	link, err := consoleLink(ctx, hub)
	if apierrors.ReasonForError(err) == fleetv1alpha1.ReasonNoConsole {
		return say(w, "\nThere is no console: %v\n", err)
	}
	if err != nil {
		return err
	}
	return say(w, `
The console, within %s, once (your browser does not know the certificate of the demo):
  %s
Later, for another link:
  orrery console --kubeconfig=%s
`, time.Until(link.Expires.Time).Round(time.Second), link.URL, kubeconfig)
}

// Command orrery is one control plane for many Kubernetes clusters: the server of the hub and
// its command line. Under the name kubectl-orrery it is a plugin of kubectl.
package main

import (
	"os"

	"orrery.dev/orrery/internal/cli"
)

func main() {
	os.Exit(cli.Run(os.Args[0], os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Command orrery-agent is the agent of Orrery. With "cluster" as the first argument it is the
// agent of a cluster that connects to the hub. Otherwise it is the agent on a host of a
// cluster, which Orrery runs over SSH.
package main

import (
	"os"

	_ "golang.org/x/crypto/x509roots/fallback" // for images, which have no system certificates

	host "orrery.dev/orrery/internal/lifecycle/agent"
	"orrery.dev/orrery/internal/tunnel/agent"
)

// version is the version of the release, set by the linker.
var version = "v0.0.0"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "cluster" {
		os.Exit(agent.Main(os.Args[2:], version, os.Stderr))
	}
	os.Exit(host.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

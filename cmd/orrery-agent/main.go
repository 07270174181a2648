// Command orrery-agent is what orrery runs on the hosts of clusters.
package main

import (
	"os"

	"orrery.dev/orrery/internal/lifecycle/agent"
)

func main() {
	os.Exit(agent.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

package cli

import "golang.org/x/sys/unix"

// keepPrivate makes every file that this process and its children create from now on accessible to
// their user only. A command calls it that runs a hub or clusters, whose files hold credentials.
func keepPrivate() { unix.Umask(0o077) }

package cli

import "golang.org/x/sys/unix"

// keepPrivate makes all new files of this process and its children accessible to their user
// only. Commands that run a hub or clusters call it, because their files contain credentials.
func keepPrivate() { unix.Umask(0o077) }

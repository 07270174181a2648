package cli

import "golang.org/x/sys/unix"

// keepPrivate sets the umask of this process to 077: files that it and its later children create
// are accessible only to their user. Commands that run a hub or member clusters call it, because
// their files contain credentials.
func keepPrivate() { unix.Umask(0o077) }

package provision

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"orrery.dev/orrery/internal/process"
)

// maxLog is the size, in bytes, at which the log of a host is rotated when a run opens it. Its
// content is then moved to HOST.log.1, and replaces an earlier one there.
const maxLog = 8 << 20

// Log implements lifecycle.Store. It opens the log of an Operation on a host for appending: the
// file OPERATION/HOST.log in s.Logs. If the file has reached maxLog, its content is moved to
// HOST.log.1 first.
func (s *Store) Log(operation, host string) (io.WriteCloser, error) {
	path := filepath.Join(s.Logs, operation, host+".log")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if err := process.RotateLog(path, maxLog); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return file, nil
}

// removeLogs removes the logs of an Operation. Missing logs are no error.
func (s *Store) removeLogs(operation string) error {
	if err := os.RemoveAll(filepath.Join(s.Logs, operation)); err != nil {
		return fmt.Errorf("remove the logs of operation %s: %w", operation, err)
	}
	return nil
}

package provision

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"orrery.dev/orrery/internal/process"
)

// maxLog is the size, in bytes, beyond which a log is renamed to HOST.log.1 when a run opens it.
const maxLog = 8 << 20

// Log implements lifecycle.Store. The file is LOGS/OPERATION/HOST.log.
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

// removeLogs removes the logs of an Operation.
func (s *Store) removeLogs(operation string) error {
	if err := os.RemoveAll(filepath.Join(s.Logs, operation)); err != nil {
		return fmt.Errorf("remove the logs of operation %s: %w", operation, err)
	}
	return nil
}

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Limits of a log: its size before RotateLog moves it (one older file of about this size is kept),
// the interval between checks of the size, and the end of the log that logTail returns.
const (
	logLimit    = 16 << 20 // bytes; one older file of about this size is kept
	logInterval = 10 * time.Second
	tailLines   = 10
	tailBytes   = 8 << 10

	// logMarker begins the line that is written to the log of a process at each start.
	logMarker = "=== orrery: "
)

// openLog opens the log at path for appending, and creates it if it does not exist. It writes a
// line that the process with this name starts. The caller closes the file.
func openLog(path, name string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if _, err := fmt.Fprintf(f, "%s%s starts %s\n", logMarker, time.Now().Format(time.RFC3339), name); err != nil {
		return nil, errors.Join(fmt.Errorf("write log: %w", err), f.Close())
	}
	return f, nil
}

// RotateLog moves the content of the log at path to the file path with the suffix ".1" if the log
// has at least limit bytes. That file is replaced. RotateLog does nothing if the log is smaller or
// does not exist. It copies the content and truncates the log, because the process keeps the log
// open. Output between the copy and the truncation, some microseconds, is lost.
func RotateLog(path string, limit int64) (err error) {
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("rotate log: %w", err)
	case info.Size() < limit:
		return nil
	}
	from, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenFile(path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	return from.Truncate(0)
}

// logTail returns the last lines of the log at path since the last start of the process, for
// messages. It returns at most tailLines lines, from the last tailBytes bytes. If the log cannot be
// read, it returns the text of the error.
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close() //nolint:errcheck // only read from
	if info, err := f.Stat(); err == nil && info.Size() > tailBytes {
		_, err = f.Seek(-tailBytes, io.SeekEnd)
		if err != nil {
			return err.Error()
		}
	}
	end, err := io.ReadAll(io.LimitReader(f, tailBytes))
	if err != nil {
		return err.Error()
	}
	if i := bytes.LastIndex(end, []byte(logMarker)); i >= 0 {
		_, end, _ = bytes.Cut(end[i:], []byte("\n"))
	}
	lines := strings.Split(strings.TrimSpace(string(end)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

package unit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// tailBytes bounds how much of a log is looked at.
const tailBytes = 256 << 10

// tail returns the last lines of the log at path, and of the one it was rotated to; none if there is no log.
func tail(path string, lines int) (string, error) {
	var text string
	for _, part := range []string{path, path + ".1"} {
		end, err := readEnd(part)
		if err != nil {
			return "", err
		}
		text = end + text
		if strings.Count(text, "\n") > lines {
			break
		}
	}
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n"), nil
}

func readEnd(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("read log: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read log: %w", err)
	}
	end, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-tailBytes), tailBytes))
	if err != nil {
		return "", fmt.Errorf("read log: %w", err)
	}
	return string(end), nil
}

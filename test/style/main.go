// Command style holds the repository to docs/style.md. It counts, in each directory, the words
// that the guide refuses and the lines that are too wide, and compares the counts with the file
// counts beside it. A count that rose fails. A count that fell fails, too, until -write records
// it: otherwise a later change could add as many words as an earlier one removed.
//
//	go run ./test/style           compare; `make check` does this
//	go run ./test/style -list DIR print what is counted in a directory
//	go run ./test/style -write    record counts that fell, and write the tables of docs/style.md
//	go run ./test/style -reset    record all counts, also those that rose: for a moved directory, a
//	                              new entry in glossary.go, and a branch that began before the check
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

const (
	countsFile = "test/style/counts"
	guideFile  = "docs/style.md"
)

func main() {
	write := flag.Bool("write", false, "record counts that fell, and write the tables of "+guideFile)
	reset := flag.Bool("reset", false, "record all counts, also those that rose")
	list := flag.String("list", "", "print what is counted in the `directory`")
	flag.Parse()
	out, err := run(context.Background(), options{write: *write, reset: *reset, list: *list})
	if _, printed := os.Stdout.WriteString(out); err == nil {
		err = printed
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "style:", err)
		os.Exit(1)
	}
}

// options are the flags. None is set for a comparison.
type options struct {
	write, reset bool
	list         string
}

// run compares the counts of the work tree with the file counts, records them, or lists what is
// counted. It returns what to print, also beside an error.
func run(ctx context.Context, o options) (out string, err error) {
	top, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", err
	}
	root := strings.TrimSpace(top)
	listed, err := git(ctx, root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return "", err
	}
	found, err := scan(os.DirFS(root), strings.FieldsFunc(listed, func(r rune) bool { return r == 0 }))
	if err != nil {
		return "", err
	}
	if o.list != "" {
		var lines strings.Builder
		for _, f := range found {
			if path.Dir(f.file) == path.Clean(o.list) {
				fmt.Fprintln(&lines, f)
			}
		}
		return lines.String(), nil
	}
	counted := count(found)
	recorded, err := readCounts(filepath.Join(root, countsFile))
	if err != nil && (!o.reset || !errors.Is(err, os.ErrNotExist)) {
		return "", err
	}
	rose, fell := compare(recorded, counted)
	if len(rose) > 0 && !o.reset {
		added, err := addedLines(ctx, root)
		if err != nil {
			return "", err
		}
		return report(rose, found, added), fmt.Errorf("%d of the counts in %s rose; fix the lines above as %s says", len(rose), countsFile, guideFile)
	}
	guide := filepath.Join(root, guideFile)
	current, err := os.ReadFile(guide)
	if err != nil {
		return "", err
	}
	text, err := withTables(string(current))
	if err != nil {
		return "", err
	}
	if o.write || o.reset {
		if err := os.WriteFile(guide, []byte(text), 0o644); err != nil { //nolint:gosec // it is a document
			return "", err
		}
		out = fmt.Sprintf("style: %d refused words and wide lines, before %d\n", total(counted), total(recorded))
		return out, os.WriteFile(filepath.Join(root, countsFile), []byte(counted.String()), 0o644) //nolint:gosec // as the guide
	}
	if len(fell) > 0 {
		return "", fmt.Errorf("%d of the counts in %s fell, first %s; run: make words, and commit that file", len(fell), countsFile, fell[0])
	}
	if text != string(current) {
		return "", fmt.Errorf("the tables of %s are not those of test/style/glossary.go; run: make words", guideFile)
	}
	return "", nil
}

// git runs a git command in a directory and returns what it prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

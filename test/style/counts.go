package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// counts has, by directory and key, how many findings there are.
type counts map[string]map[string]int

const countsHeader = `# What each directory still has that docs/style.md refuses: by word, and as "columns" the lines that are
# too wide. The numbers may only fall. ` + "`make words`" + ` records those that fell; see test/style/main.go.
`

func count(found []finding) counts {
	c := counts{}
	for _, f := range found {
		c.add(path.Dir(f.file), f.key, 1)
	}
	return c
}

func (c counts) add(directory, key string, n int) {
	if c[directory] == nil {
		c[directory] = map[string]int{}
	}
	c[directory][key] += n
}

func total(c counts) (n int) {
	for _, keys := range c {
		for _, k := range keys {
			n += k
		}
	}
	return n
}

// String writes a line for each directory, sorted, so that equal trees have equal files. Blanks in
// keys are underscores.
func (c counts) String() string {
	var b strings.Builder
	b.WriteString(countsHeader)
	for _, directory := range slices.Sorted(maps.Keys(c)) {
		b.WriteString(directory)
		for _, key := range slices.Sorted(maps.Keys(c[directory])) {
			fmt.Fprintf(&b, " %s=%d", strings.ReplaceAll(key, " ", "_"), c[directory][key])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// readCounts reads the file counts. It is an error that is os.ErrNotExist if there is no file.
func readCounts(file string) (counts, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	c, err := parseCounts(string(content))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// parseCounts reads what String wrote. After a merge with merge=union (.gitattributes) a directory
// may have several lines. Then each branch lowered other counts, so the least of each counts, and
// a count that a line lacks is zero.
func parseCounts(text string) (counts, error) {
	c := counts{}
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		keys := map[string]int{}
		for _, field := range fields[1:] {
			key, number, _ := strings.Cut(field, "=")
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("line %d: %q is not KEY=NUMBER", i+1, field)
			}
			keys[strings.ReplaceAll(key, "_", " ")] = n
		}
		if earlier, ok := c[fields[0]]; ok {
			for key, n := range earlier {
				keys[key] = min(keys[key], n)
			}
			for key := range keys {
				keys[key] = min(keys[key], earlier[key])
			}
			maps.DeleteFunc(keys, func(_ string, n int) bool { return n == 0 })
		}
		c[fields[0]] = keys
	}
	return c, nil
}

// rise is a count above the recorded one.
type rise struct {
	directory, key string
	is, was        int
}

// compare returns the counts that rose, and those that fell as "DIRECTORY KEY: WAS to IS".
func compare(recorded, counted counts) (rose []rise, fell []string) {
	for directory, keys := range counted {
		for key, is := range keys {
			if was := recorded[directory][key]; is > was {
				rose = append(rose, rise{directory: directory, key: key, is: is, was: was})
			}
		}
	}
	for directory, keys := range recorded {
		for key, was := range keys {
			if is := counted[directory][key]; is < was {
				fell = append(fell, fmt.Sprintf("%s %s: %d to %d", directory, key, was, is))
			}
		}
	}
	slices.SortFunc(rose, func(a, b rise) int {
		return cmp.Or(strings.Compare(a.directory, b.directory), strings.Compare(a.key, b.key))
	})
	slices.Sort(fell)
	return rose, fell
}

// mostShown is how many findings are printed for a count that rose.
const mostShown = 20

// report lists the findings of the counts that rose: those in added lines, or all if none is in
// one.
func report(rose []rise, found []finding, added func(file string, line int) bool) string {
	var out strings.Builder
	for _, r := range rose {
		var all, fresh []finding
		for _, f := range found {
			if path.Dir(f.file) != r.directory || f.key != r.key {
				continue
			}
			all = append(all, f)
			if added(f.file, f.line) {
				fresh = append(fresh, f)
			}
		}
		if len(fresh) > 0 {
			all = fresh
		}
		for _, f := range all[:min(len(all), mostShown)] {
			fmt.Fprintln(&out, f)
		}
		if n := len(all) - mostShown; n > 0 {
			fmt.Fprintf(&out, "%s: %d more\n", r.directory, n)
		}
		fmt.Fprintf(&out, "%s: %q rose from %d to %d\n", r.directory, r.key, r.was, r.is)
	}
	return out.String()
}

// addedLines returns a function that reports whether a line was added since the file counts was
// last committed. Of a file that git does not know every line is.
func addedLines(ctx context.Context, root string) (func(file string, line int) bool, error) {
	since, err := git(ctx, root, "log", "-1", "--format=%H", "--", countsFile)
	if err != nil {
		return nil, err
	}
	since = strings.TrimSpace(since)
	if since == "" {
		return func(string, int) bool { return false }, nil
	}
	diff, err := git(ctx, root, "diff", "--unified=0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/", since)
	if err != nil {
		return nil, err
	}
	others, err := git(ctx, root, "ls-files", "-z", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	return parseDiff(diff, strings.Split(others, "\x00"))
}

var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

func parseDiff(diff string, untracked []string) (func(file string, line int) bool, error) {
	type span struct{ from, to int }
	spans := map[string][]span{}
	file := ""
	for line := range strings.SplitSeq(diff, "\n") {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = name
			continue
		}
		at := hunk.FindStringSubmatch(line)
		if at == nil {
			continue
		}
		from, err := strconv.Atoi(at[1])
		if err != nil {
			return nil, fmt.Errorf("git diff: %q: %w", line, err)
		}
		n := 1
		if at[2] != "" {
			if n, err = strconv.Atoi(at[2]); err != nil {
				return nil, fmt.Errorf("git diff: %q: %w", line, err)
			}
		}
		spans[file] = append(spans[file], span{from: from, to: from + n})
	}
	return func(file string, line int) bool {
		return slices.Contains(untracked, file) ||
			slices.ContainsFunc(spans[file], func(s span) bool { return s.from <= line && line < s.to })
	}, nil
}

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestRotateLog: the process keeps its log open during the rotation.
func TestRotateLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.log")
	if err := RotateLog(path, 1); err != nil {
		t.Errorf("rotate a log that does not exist yet: %v", err)
	}
	log, err := openLog(path, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	marker := read(t, path)
	write := func(text string) {
		t.Helper()
		if _, err := log.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := RotateLog(path, int64(len(marker)+10)); err != nil {
			t.Fatal(err)
		}
	}
	write("below\n")
	if diff := cmp.Diff(marker+"below\n", read(t, path)); diff != "" {
		t.Errorf("below the limit (-want +got):\n%s", diff)
	}
	write("above\n")
	write("next\n")
	if diff := cmp.Diff(marker+"below\nabove\n", read(t, path+".1")); diff != "" {
		t.Errorf("old log (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("next\n", read(t, path)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	again := strings.Repeat("again", len(marker))
	write(again)
	if diff := cmp.Diff("next\n"+again, read(t, path+".1")); diff != "" {
		t.Errorf("the one old log after two rotations (-want +got):\n%s", diff)
	}
}

func TestLogIsKeptAndRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.log")
	if err := os.WriteFile(path, make([]byte, logLimit), 0o600); err != nil {
		t.Fatal(err)
	}
	for want := range 2 { // the second supervisor appends
		r := start(t, dir, Plan{Processes: []Process{actor("a", rolePolite, "")}})
		eventually(t, "a speaks", func() bool { return strings.Count(r.log("a"), "polite\n") == want+1 })
		r.stop()
		<-r.done
		if got := strings.Count(r.log("a"), " starts a\n"); got != want+1 {
			t.Errorf("starts in the log: got %d, want %d", got, want+1)
		}
	}
	old, err := os.Stat(path + ".1")
	if err != nil {
		t.Fatal(err)
	}
	if old.Size() != logLimit {
		t.Errorf("old log: got %d bytes, want %d", old.Size(), logLimit)
	}
}

func TestLogTail(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintln(&many, "line", i)
	}
	cases := map[string]struct{ log, want string }{
		"Empty":        {log: "", want: ""},
		"ThisStart":    {log: "earlier\n" + logMarker + "now starts a\none\ntwo\n", want: "one\ntwo"},
		"NothingYet":   {log: "earlier\n" + logMarker + "now starts a\n", want: ""},
		"LastLines":    {log: many.String(), want: "line 4990\nline 4991\nline 4992\nline 4993\nline 4994\nline 4995\nline 4996\nline 4997\nline 4998\nline 4999"},
		"NoEndOfLine":  {log: "one\ntw", want: "one\ntw"},
		"OneHugeLine":  {log: strings.Repeat("x", 5*tailBytes), want: strings.Repeat("x", tailBytes)},
		"BeforeMarker": {log: logMarker + "now starts a\n" + strings.Repeat("x\n", tailBytes), want: strings.TrimSpace(strings.Repeat("x\n", tailLines))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.log")
			if err := os.WriteFile(path, []byte(tc.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, logTail(path)); diff != "" {
				t.Errorf("tail (-want +got):\n%s", diff)
			}
		})
	}
}

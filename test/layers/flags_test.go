package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"orrery.dev/orrery/internal/cli"
)

// TestFlagsAreDocumented checks that docs mention every flag of every command.
func TestFlagsAreDocumented(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var docs strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(text)
	}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(docs.String(), "`--"+f.Name+"`") && !strings.Contains(docs.String(), "--"+f.Name+" ") {
				t.Errorf("%s --%s is in no document; add it to docs/operating.md", c.CommandPath(), f.Name)
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(cli.Command())
}

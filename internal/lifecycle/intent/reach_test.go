package intent_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	"orrery.dev/orrery/internal/lifecycle/intent"
)

// TestReachTable: each action has a treatment for each host that it can meet. A host that was not
// reached is never worked on, and one that refuses the login is as unknown as an unreachable one.
func TestReachTable(t *testing.T) {
	parts := map[lifecyclev1alpha1.Action][]intent.Part{
		intent.ActionPreflight:                    {intent.Coming, intent.Staying},
		intent.ActionPlan:                         {intent.Coming, intent.Staying},
		lifecyclev1alpha1.ActionCreate:            {intent.Coming},
		lifecyclev1alpha1.ActionApply:             {intent.Coming, intent.Staying},
		lifecyclev1alpha1.ActionAddNode:           {intent.Coming, intent.Staying},
		lifecyclev1alpha1.ActionDeleteNode:        {intent.Staying, intent.Leaving},
		lifecyclev1alpha1.ActionDelete:            {intent.Leaving},
		lifecyclev1alpha1.ActionRenewCertificates: {intent.Staying},
	}
	rows := 0
	for action, list := range parts {
		rows += len(list)
		for _, part := range list {
			n := 0
			for _, row := range intent.ReachTable {
				if row.Action == action && row.Part == part {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%s, host %s: %d rows", action, part, n)
			}
			if got := intent.Treat(action, part, intent.Reached); got != intent.TreatWork {
				t.Errorf("%s, host %s, reached: %s", action, part, got)
			}
			unreachable, refused := intent.Treat(action, part, intent.Unreachable), intent.Treat(action, part, intent.Refused)
			if unreachable == intent.TreatWork || unreachable != refused {
				t.Errorf("%s, host %s: unreachable %s, refused %s", action, part, unreachable, refused)
			}
		}
	}
	if rows != len(intent.ReachTable) {
		t.Errorf("the table has %d rows, want %d", len(intent.ReachTable), rows)
	}
	if got := intent.Treat(lifecyclev1alpha1.ActionDelete, intent.Coming, intent.Reached); got != intent.TreatStop {
		t.Errorf("a combination that does not exist: %s", got)
	}
}

// TestReachTableIsDocumented: docs/clusters.md has the table.
func TestReachTableIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/clusters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "<!-- begin: reach -->\n")
	got, _, ended := strings.Cut(rest, "<!-- end: reach -->")
	if !found || !ended {
		t.Fatal("the page has no table of hosts between its marks")
	}
	var want strings.Builder
	want.WriteString("| command | host | reached | unreachable | refused |\n|---|---|---|---|---|\n")
	for _, row := range intent.ReachTable {
		fmt.Fprintf(&want, "| %s | %s | %s | %s | %s |\n", row.Commands, row.Part, row.Reached, row.Unreachable, row.Refused)
	}
	if d := cmp.Diff(want.String(), got); d != "" {
		t.Errorf("docs/clusters.md (-want +got):\n%s", d)
	}
}

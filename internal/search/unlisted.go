package search

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/neutral"
)

// longestProblem is the maximum number of characters that a warning quotes of an error that a
// cluster returned.
const longestProblem = 160

// unlisted returns the warning that a cluster cannot list a type, so that objects are missing or
// old. why is the error of the cluster; "": unknown.
func unlisted(cluster string, gr schema.GroupResource, why string) string {
	if why != "" {
		why = ": " + inHeader(why)
	}
	return fmt.Sprintf("cluster %s cannot list %s, so its objects are missing or the last known%s", cluster, gr, why)
}

// silent returns the warning that a cluster has sent no news of a type since a time, so that its
// objects may be old. why is the error of the cluster; "": unknown.
func silent(cluster string, gr schema.GroupResource, since time.Time, why string) string {
	if why != "" {
		why = " (" + inHeader(why) + ")"
	}
	return fmt.Sprintf("cluster %s does not tell of %s since %s%s: its objects are the last known", cluster, gr, since.UTC().Format(time.RFC3339), why)
}

// inHeader returns a text that a header can contain: one line, without control characters, and at
// most longestProblem characters.
func inHeader(text string) string {
	runes := []rune(neutral.Line(text))
	if len(runes) > longestProblem {
		runes = append(runes[:longestProblem-1], '…')
	}
	return string(runes)
}

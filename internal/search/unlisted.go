package search

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"orrery.dev/orrery/internal/neutral"
)

// longestProblem is the maximum number of characters of a cluster's error in a warning.
const longestProblem = 160

// unlisted returns the warning about a type that a cluster cannot list; why may be empty.
func unlisted(cluster string, gr schema.GroupResource, why string) string {
	if why != "" {
		why = ": " + inHeader(why)
	}
	return fmt.Sprintf("cluster %s cannot list %s, so its objects are missing or the last known%s", cluster, gr, why)
}

// silent returns the warning that a cluster has not reported about a type since a time; why may
// be empty.
func silent(cluster string, gr schema.GroupResource, since time.Time, why string) string {
	if why != "" {
		why = " (" + inHeader(why) + ")"
	}
	return fmt.Sprintf("cluster %s does not tell of %s since %s%s: its objects are the last known", cluster, gr, since.UTC().Format(time.RFC3339), why)
}

// inHeader returns a text for a header: on one line, without control characters, and shortened.
func inHeader(text string) string {
	runes := []rune(neutral.Line(text))
	if len(runes) > longestProblem {
		runes = append(runes[:longestProblem-1], '…')
	}
	return string(runes)
}

package search

import (
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// ambiguous returns the error (409) that the requested object exists in several clusters. There
// must be at least one cluster. The message has two commands: one shows the object in one cluster,
// the other lists all. It sorts clusters in place.
func ambiguous(at location, clusters []string) error {
	kind, namespace := at.asked().GroupResource().String(), ""
	if at.namespace != "" {
		namespace = " -n " + shellWord(at.namespace)
	}
	return failure(http.StatusConflict, metav1.StatusReasonConflict, fmt.Sprintf(
		"%s %q is in %d clusters (%s): ask one of them (kubectl --context %s get %s %s%s), or list them all (kubectl get %s%s --field-selector %s)",
		kind, at.name, len(clusters), enumerate(clusters), clusters[0], kind, shellWord(at.name), namespace,
		kind, namespace, shellWord("metadata.name="+fields.EscapeValue(at.name))))
}

// shellWord returns a text as one word of a POSIX shell's command line, in quotes if necessary.
func shellWord(text string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/@%+=,", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

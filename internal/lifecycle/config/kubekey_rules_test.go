package config

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentHasEveryField: the table in docs/from-kubekey.md has each field with a rule.
func TestDocumentHasEveryField(t *testing.T) {
	content, err := os.ReadFile("../../../docs/from-kubekey.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(content), "## Fields")
	words := map[string]bool{}
	for _, word := range strings.FieldsFunc(table, func(r rune) bool { return strings.ContainsRune("`.,[] :|*", r) }) {
		words[word] = true
	}
	for path := range rules {
		for _, word := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
			if !words[word] && word != "cilium" {
				t.Errorf("%s: %s is not in docs/from-kubekey.md", path, word)
			}
		}
	}
}

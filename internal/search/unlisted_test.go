package search

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// TestUnlisted: the warning about a cluster can be sent for every error that its list returns.
func TestUnlisted(t *testing.T) {
	for name, problem := range map[string]string{
		"Plain":       "dials.example.com is forbidden",
		"Lines":       "first\r\nX-Forged: yes\x00",
		"NotUTF8":     "\xff\xfe",
		"Long":        strings.Repeat("ä", 10_000),
		"WithQuotes":  `Post "https://127.0.0.1:1/convert": refused`,
		"BackSlashes": `C:\dir\`,
	} {
		t.Run(name, func(t *testing.T) {
			text := unlisted("oak", schema.GroupResource{Group: "example.com", Resource: "dials"}, problem)
			header, err := utilnet.NewWarningHeader(299, "-", text)
			if err != nil || !strings.Contains(header, "cluster oak cannot list dials.example.com") || len(header) > 1000 {
				t.Errorf("the header is %q: %v", header, err)
			}
		})
	}
}

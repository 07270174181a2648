package render

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// limit is the size that a manifest may have, and a document in one of its fields with all
// aliases resolved: as much as etcd accepts in one request. Larger ones are refused before they
// are built.
const limit = 3 << 19 // 1.5 MiB

var (
	// errManifest is the error for a manifest above the limit.
	errManifest = errors.New("the manifest would be larger than 1.5 MiB, and no cluster stores that")
	// errDocument is the error for a document in a field of a manifest, above the limit.
	errDocument = errors.New("the document would be larger than 1.5 MiB, and no cluster stores that")
	// errAliases is the error for a YAML document that exceeds the limit once its aliases are
	// resolved.
	errAliases = errors.New("with its aliases resolved the document is larger than 1.5 MiB, and no cluster stores that")
)

// bounded returns errManifest if an object is larger than the limit.
func bounded(o *unstructured.Unstructured) error {
	if b := budget(limit); !b.spend(o.Object, 0, 0) {
		return errManifest
	}
	return nil
}

// budget is the number of bytes that a manifest or document may still have. It is negative once the
// limit is exceeded.
type budget int

// spend subtracts the minimal size of a value as JSON or YAML. indent is the number of spaces for
// each level in YAML, 0 for one line of JSON, and depth the level of the value. It returns false as
// soon as the budget is exceeded.
func (b *budget) spend(v any, indent, depth int) bool {
	const separators = 2
	*b -= separators
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if *b -= budget(len(key) + separators + indent*depth); *b < 0 || !b.spend(value, indent, depth+1) {
				return false
			}
		}
	case []any:
		for _, element := range v {
			if *b -= budget(indent * depth); *b < 0 || !b.spend(element, indent, depth+1) {
				return false
			}
		}
	case string:
		*b -= budget(len(v) + lines(v, indent*depth)*indent*depth)
	}
	return *b >= 0
}

// lines returns about how many additional lines YAML needs for a text that starts at a column; 0
// for column 0.
func lines(text string, column int) int {
	if column == 0 {
		return 0
	}
	const width = 80 // a longer line is broken at the next space
	return strings.Count(text, "\n") + min(strings.Count(text, " "), len(text)/max(1, width-column))
}

// expanding is held while a YAML document is read. The parser can use much memory for few
// bytes, and all workers of all clusters may read such a document at once.
var expanding sync.Mutex

// checkAliases returns errAliases if a YAML document would exceed the limit with all aliases
// resolved, and another error for invalid YAML. It computes the size without resolving an alias.
func checkAliases(text []byte) error {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return fmt.Errorf("the field does not hold a YAML document: %w", err)
	}
	if resolved(&document, map[*yaml.Node]int{}) > limit {
		return errAliases
	}
	return nil
}

// resolved returns the size of a YAML node with all aliases resolved. It returns limit + 1 for a
// larger node, or one that is endless because it contains itself. It visits each node once: known
// has the sizes of the nodes visited so far.
func resolved(n *yaml.Node, known map[*yaml.Node]int) int {
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = limit + 1 // a node that is met again before its size is known contains itself
	const separators = 2
	size := separators + len(n.Value)
	if n.Alias != nil {
		size = resolved(n.Alias, known)
	}
	for _, child := range n.Content {
		size = min(size+resolved(child, known), limit+1)
	}
	known[n] = size
	return size
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// quoted matches the quoted field at the end of an error.
var quoted = regexp.MustCompile(`"([^"]+)"$`)

// at joins the errors about fields of the document, sorted by line. An error that ends with a
// quoted field, such as unknown field "spec.hosts[0].prot", gets a line number. at changes the
// slice.
func (d document) at(problems []error) error {
	lines := map[error]int{}
	for _, p := range problems {
		if match := quoted.FindStringSubmatch(p.Error()); match != nil {
			lines[p] = d.lineOf(match[1])
		}
	}
	slices.SortStableFunc(problems, func(a, b error) int { return cmp.Compare(lines[a], lines[b]) })
	for i, p := range problems {
		if line := lines[p]; line > 0 {
			problems[i] = fmt.Errorf("line %d: %w", line, p)
		}
	}
	return errors.Join(problems...)
}

// segment matches the first key, or the first index in brackets, of the path of a field.
var segment = regexp.MustCompile(`^\.?([^.\[\]]+)|^\[(\d+)\]`)

// lineOf returns the line in the file of a field, such as spec.hosts[0].name, or of its nearest
// parent that exists. It is zero if there is none.
func (d document) lineOf(path string) int {
	var root yaml.Node
	if err := yaml.Unmarshal(d.yaml, &root); err != nil || len(root.Content) == 0 {
		return 0
	}
	node, line := root.Content[0], 0
	for path != "" {
		match := segment.FindStringSubmatch(path)
		if match == nil {
			return line
		}
		path = strings.TrimPrefix(path, match[0])
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		switch {
		case match[2] != "" && node.Kind == yaml.SequenceNode:
			i, err := strconv.Atoi(match[2])
			if err != nil || i >= len(node.Content) {
				return line
			}
			node = node.Content[i]
			line = node.Line
		case match[1] != "" && node.Kind == yaml.MappingNode:
			found := false
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == match[1] {
					line, node, found = node.Content[i].Line, node.Content[i+1], true
					break
				}
			}
			if !found {
				return line
			}
		default:
			return line
		}
	}
	return line
}

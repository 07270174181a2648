package crd_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/config/crd"
)

// TestSchemaVersionGrowsWithTheSchema: a change of a schema needs a new SchemaVersion.
// schema.sum has a line for each version, the current one last, with the hash of all
// definitions without their descriptions.
func TestSchemaVersionGrowsWithTheSchema(t *testing.T) {
	text, err := os.ReadFile("schema.sum")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		if version, _, _ := strings.Cut(line, " "); version != fmt.Sprint(i+1) {
			t.Fatalf("line %d of schema.sum is of version %s: versions are counted from 1 and none is left out", i+1, version)
		}
	}
	if last := lines[len(lines)-1]; last != fmt.Sprintf("%d %s", crd.SchemaVersion, schemaSum(t)) {
		t.Errorf("the schema has changed: raise SchemaVersion in embed.go and add the line %q to schema.sum; the last is %q, of version %d",
			fmt.Sprintf("%d %s", len(lines)+1, schemaSum(t)), last, crd.SchemaVersion)
	}
}

func schemaSum(t *testing.T) string {
	t.Helper()
	files, err := fs.Glob(crd.Files, "*.yaml") // sorted
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	for _, file := range files {
		text, err := crd.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var definition any
		if err := yaml.Unmarshal(text, &definition); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if err := json.NewEncoder(hash).Encode(undescribed(definition)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// undescribed returns a definition without descriptions, which do not affect what is stored. It
// changes v.
func undescribed(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if _, text := value.(string); text && key == "description" {
				delete(v, key)
				continue
			}
			v[key] = undescribed(value)
		}
	case []any:
		for i := range v {
			v[i] = undescribed(v[i])
		}
	}
	return v
}

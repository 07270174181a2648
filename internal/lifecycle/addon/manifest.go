package addon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/lifecycle/catalog"
	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/manifest"
)

// maxManifest bounds the size of a manifest or chart, in bytes.
const maxManifest = 32 << 20

// manifestObjects reads a manifest from a URL or path.
func manifestObjects(ctx context.Context, in Input, source string) ([]*unstructured.Unstructured, plan.Source, error) {
	content, err := read(ctx, in, source)
	if err != nil {
		return nil, plan.Source{}, fmt.Errorf("read manifest %s: %w", catalog.ShownLocation(source), err)
	}
	all, err := manifest.Parse(content, yaml.YAMLToJSONStrict)
	if err != nil {
		return nil, plan.Source{}, fmt.Errorf("parse manifest %s: %w", catalog.ShownLocation(source), err)
	}
	return all, plan.Source{Kind: plan.SourceManifest, Location: catalog.ShownLocation(source), Digest: digestOfBytes(content)}, nil
}

// read reads a URL or path in the spec.
func read(ctx context.Context, in Input, source string) ([]byte, error) {
	if isURL(source) {
		content, err := in.Fetch(ctx, source)
		if err == nil && len(content) > maxManifest {
			err = tooLarge(len(content))
		}
		return content, err
	}
	if err := localPath(in); err != nil {
		return nil, err
	}
	file, err := os.Open(source)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err == nil && len(content) > maxManifest {
		err = tooLarge(len(content))
	}
	return content, err
}

func isURL(source string) bool {
	return strings.HasPrefix(source, "https://") || strings.HasPrefix(source, "http://")
}

// localPath returns an error unless the spec may name paths. Otherwise they would be read with the
// rights of this process, not its author's.
func localPath(in Input) error {
	if !in.Local {
		return errors.New("a path is only for files that are given to orrery on the command line: give an http:// or https:// URL")
	}
	return nil
}

func tooLarge(size int) error {
	return fmt.Errorf("it has %d bytes or more, and at most %d are read", size, maxManifest)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

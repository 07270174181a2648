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

	"orrery.dev/orrery/internal/lifecycle/plan"
	"orrery.dev/orrery/internal/manifest"
	"orrery.dev/orrery/internal/neutral"
)

// maxManifest is the maximum size of a manifest, chart or index that is read, in bytes.
const maxManifest = 32 << 20

// manifestObjects reads the objects of a manifest. source is a URL, or a path if the spec may name
// paths.
func manifestObjects(ctx context.Context, in Input, source string) ([]*unstructured.Unstructured, plan.Source, error) {
	content, err := read(ctx, in, source)
	if err != nil {
		return nil, plan.Source{}, fmt.Errorf("read manifest %s: %w", neutral.ShownLocation(source), err)
	}
	all, err := manifest.Parse(content, yaml.YAMLToJSONStrict)
	if err != nil {
		return nil, plan.Source{}, fmt.Errorf("parse manifest %s: %w", neutral.ShownLocation(source), err)
	}
	return all, plan.Source{Kind: plan.SourceManifest, Location: neutral.ShownLocation(source), Digest: digestOfBytes(content)}, nil
}

// read reads what the spec names: a URL, or a file of this machine if the spec may name files. More
// than maxManifest bytes are an error.
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

// isURL reports whether a source in the spec is an http or https URL, and not a path.
func isURL(source string) bool {
	return strings.HasPrefix(source, "https://") || strings.HasPrefix(source, "http://")
}

// localPath returns an error unless the spec may name files of this machine (in.Local). On a hub,
// such a file would be read with the rights of the hub and not with those of the author of the
// spec.
func localPath(in Input) error {
	if !in.Local {
		return errors.New("a path is only for files that are given to orrery on the command line: give an http:// or https:// URL")
	}
	return nil
}

// tooLarge returns the error for a manifest or chart of more than maxManifest bytes.
func tooLarge(size int) error {
	return fmt.Errorf("it has %d bytes or more, and at most %d are read", size, maxManifest)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

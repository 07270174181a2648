// Package manifest sends manifests to an API server. It reads their documents, applies them by
// server-side apply as one field manager, and waits for the kinds that they define, which are
// served a moment after they are applied.
package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// Limits for the content of a manifest.
const (
	// maxDocuments is the maximum number of documents in a manifest.
	maxDocuments = 5000
	// maxDocument is the maximum size of a document in bytes. It is more than an API server accepts.
	maxDocument = 3 << 20
)

// Parse returns the objects of a manifest in YAML or JSON. Empty documents are left out, and lists
// give their items. The status and the metadata that only an API server sets are removed. The
// author of the manifest is not trusted: a document that is not an object with a name is refused.
// The error has the number of the document, counted from 1. toJSON converts one YAML document to
// JSON.
func Parse(content []byte, toJSON func([]byte) ([]byte, error)) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for number := 1; ; number++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err == nil && number > maxDocuments {
			err = fmt.Errorf("there are more than %d documents", maxDocuments)
		}
		var found []*unstructured.Unstructured
		if err == nil {
			found, err = parseDocument(document, toJSON)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		all = append(all, found...)
	}
}

// parseDocument returns the objects of one document: one object, the items of a list, or nil for an
// empty document.
func parseDocument(document []byte, toJSON func([]byte) ([]byte, error)) ([]*unstructured.Unstructured, error) {
	if len(document) > maxDocument {
		return nil, fmt.Errorf("it has %d bytes, and at most %d are read", len(document), maxDocument)
	}
	content, err := toJSON(document)
	if err != nil {
		return nil, fmt.Errorf("parse YAML: %w", err)
	}
	if string(content) == "null" {
		return nil, nil
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(content, &kind); err != nil || kind.Kind == "" || kind.APIVersion == "" {
		return nil, fmt.Errorf("it is no Kubernetes object with apiVersion and kind: it begins with %q", beginning(document))
	}
	decoded, err := runtime.Decode(unstructured.UnstructuredJSONScheme, content)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", kind.Kind, err)
	}
	if list, ok := decoded.(*unstructured.UnstructuredList); ok {
		all := make([]*unstructured.Unstructured, len(list.Items))
		for i := range list.Items {
			all[i] = &list.Items[i]
			if err := checkObject(all[i]); err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return all, nil
	}
	o, ok := decoded.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("decode %s: it is a %T", kind.Kind, decoded)
	}
	return []*unstructured.Unstructured{o}, checkObject(o)
}

// checkObject returns an error for an object without apiVersion, kind or name, which cannot be
// applied. It removes, in place, the status and the metadata that only an API server sets.
func checkObject(o *unstructured.Unstructured) error {
	switch {
	case o.GetAPIVersion() == "" || o.GetKind() == "":
		return errors.New("apiVersion or kind is missing")
	case o.GetName() == "" && o.GetGenerateName() != "":
		return fmt.Errorf("%s has generateName, so each apply would make another one: give it metadata.name", o.GetKind())
	case o.GetName() == "":
		return fmt.Errorf("%s has no metadata.name", o.GetKind())
	}
	// The object may once have been read from an API server, which set these fields.
	for _, field := range []string{
		"resourceVersion", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields", "selfLink",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	delete(o.Object, "status")
	return nil
}

// beginning returns at most 60 bytes of the first line of a document, for errors.
func beginning(document []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(document)), "\n")
	const most = 60
	return line[:min(len(line), most)]
}

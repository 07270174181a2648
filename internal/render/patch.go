package render

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
)

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    policyv1alpha1.OverriderOperator `json:"op"`
	Path  string                           `json:"path"`
	Value *apiextensionsv1.JSON            `json:"value,omitempty"`
}

// patchOptions returns options that follow the RFC strictly: a value that is removed or replaced
// must exist, and so must the parent of a value that is added.
func patchOptions() *jsonpatch.ApplyOptions {
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.EscapeHTML = false
	return options
}

// patch returns a JSON document after one operation: add, replace or remove. Any other operation,
// and add or replace without a value, is an error. The document itself is not changed.
func patch(document []byte, op operation) ([]byte, error) {
	switch op.Op {
	case policyv1alpha1.OverriderOpAdd, policyv1alpha1.OverriderOpReplace:
		if op.Value == nil {
			return nil, fmt.Errorf("%s %s: value is required", op.Op, op.Path)
		}
	case policyv1alpha1.OverriderOpRemove:
		op.Value = nil
	default:
		return nil, unknownOperator(op.Op)
	}
	raw, err := json.Marshal([]operation{op})
	if err != nil {
		return nil, fmt.Errorf("%s %s: value: %w", op.Op, op.Path, err)
	}
	decoded, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
	}
	patched, err := decoded.ApplyWithOptions(document, patchOptions())
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
	}
	return patched, nil
}

// overridePlaintext returns a new object with the changes of an override that names any fields by
// JSON pointers. o is not changed.
func overridePlaintext(o *unstructured.Unstructured, changes []policyv1alpha1.PlaintextOverrider) (*unstructured.Unstructured, error) {
	document, err := json.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("plaintext: encode: %w", err)
	}
	for i, c := range changes {
		if document, err = patch(document, operation{c.Operator, c.Path, c.Value}); err != nil {
			return nil, fmt.Errorf("plaintext[%d]: %w", i, err)
		}
	}
	patched := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(document, &patched.Object); err != nil {
		return nil, fmt.Errorf("plaintext: the result is no object: %w", err)
	}
	return patched, nil
}

// overrideDocument changes, in place, a JSON or YAML document that a field of the object contains
// as text. A YAML document is written again with sorted keys and without comments. The mutex
// expanding is held for YAML, so only one such document is changed at a time.
func overrideDocument(o *unstructured.Unstructured, c *policyv1alpha1.FieldOverrider) error {
	return changeText(o.Object, c.FieldPath, func(text string) (string, error) {
		if len(c.JSON) > 0 {
			document, err := patchAll([]byte(text), "json", c.JSON)
			return string(document), err
		}
		expanding.Lock()
		defer expanding.Unlock()
		document, err := oneDocument(text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.FieldPath, err)
		}
		if document, err = patchAll(document, "yaml", c.YAML); err != nil {
			return "", err
		}
		return toYAML(document)
	})
}

// toYAML returns a JSON document as YAML, in which deeply nested values take far more bytes. It
// returns errDocument if the result would exceed the limit.
func toYAML(document []byte) (string, error) {
	const indent = 2
	var value any
	if err := json.Unmarshal(document, &value); err != nil {
		return "", err
	}
	if b := budget(limit); !b.spend(value, indent, 0) {
		return "", errDocument
	}
	text, err := yaml.JSONToYAML(document)
	return string(text), err
}

// patchAll returns a JSON document after all operations. The error names the operation by language
// ("json" or "yaml", the field of the override) and index. A text that is not JSON is an error.
func patchAll(document []byte, language string, changes []policyv1alpha1.FieldPatchOperation) ([]byte, error) {
	if !json.Valid(document) {
		return nil, errors.New("the field does not hold a JSON document")
	}
	var err error
	for i, c := range changes {
		if document, err = patch(document, operation{c.Operator, c.SubPath, c.Value}); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", language, i, err)
		}
	}
	return document, nil
}

// oneDocument returns the only document of a YAML text as JSON. No document is an error, and so are
// several, because all but the first would be lost.
func oneDocument(text string) ([]byte, error) {
	var document []byte
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewBufferString(text)))
	for {
		raw, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read YAML: %w", err)
		}
		if err := checkAliases(raw); err != nil {
			return nil, err
		}
		decoded, err := yaml.YAMLToJSON(raw)
		if err != nil {
			return nil, fmt.Errorf("the field does not hold a YAML document: %w", err)
		}
		if string(decoded) == "null" {
			continue
		}
		if document != nil {
			return nil, errors.New("the field holds several YAML documents; only one can be changed")
		}
		document = decoded
	}
	if document == nil {
		return nil, errors.New("the field holds no YAML document")
	}
	return document, nil
}

package render

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	"orrery.dev/orrery/internal/interpreter"
)

// image has the parts of [registry/]repository[:tag][@digest].
type image struct{ registry, repository, tag, digest string }

// parseImage splits the name of an image into its parts. It accepts every text. The first component
// is a registry if it looks like a host: it has a dot or a port, or is localhost.
func parseImage(s string) image {
	var i image
	rest, digest, _ := strings.Cut(s, "@")
	i.digest = digest
	if colon := strings.LastIndexByte(rest, ':'); colon > strings.LastIndexByte(rest, '/') {
		rest, i.tag = rest[:colon], rest[colon+1:]
	}
	if host, path, ok := strings.Cut(rest, "/"); ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		i.registry, rest = host, path
	}
	i.repository = rest
	return i
}

// String returns the image as [registry/]repository[:tag][@digest], without the parts that are "".
func (i image) String() string {
	s := i.repository
	if i.registry != "" {
		s = i.registry + "/" + s
	}
	if i.tag != "" {
		s += ":" + i.tag
	}
	if i.digest != "" {
		s += "@" + i.digest
	}
	return s
}

// digestPattern matches a digest: an algorithm and hexadecimal digits.
var digestPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}$`)

// change returns the image with one component changed by an override. The component Tag is the tag
// together with the digest: a digest stands for one content, so it fits no other tag. A new tag in
// the form of a digest becomes the digest. An unknown component or operator is an error, and so is
// a result without a repository.
func (i image) change(c *policyv1alpha1.ImageOverrider) (image, error) {
	var part *string
	switch c.Component {
	case policyv1alpha1.ImageRegistry:
		part = &i.registry
	case policyv1alpha1.ImageRepository:
		part = &i.repository
	case policyv1alpha1.ImageTag:
		part, i.digest = &i.tag, ""
	default:
		return i, fmt.Errorf("component: %q is none of Registry, Repository and Tag", c.Component)
	}
	switch c.Operator {
	case policyv1alpha1.OverriderOpAdd:
		*part += c.Value
	case policyv1alpha1.OverriderOpReplace:
		*part = c.Value
	case policyv1alpha1.OverriderOpRemove:
		*part = ""
	default:
		return i, unknownOperator(c.Operator)
	}
	if digestPattern.MatchString(i.tag) {
		i.tag, i.digest = "", i.tag
	}
	if i.repository == "" {
		return i, errors.New("the image would have no repository left")
	}
	return i, nil
}

// unknownOperator returns the error of an override whose operator is not add, remove or replace.
func unknownOperator(operator policyv1alpha1.OverriderOperator) error {
	return fmt.Errorf("operator: %q is none of add, remove and replace", operator)
}

// overrideImage changes the image at the path of c.Predicate. Without a predicate it changes the
// image of each container and init container that has one. It changes the object in place. After an
// error the object may be changed in part.
func overrideImage(o *unstructured.Unstructured, c *policyv1alpha1.ImageOverrider) error {
	if c.Predicate != nil {
		return changeText(o.Object, c.Predicate.Path, func(s string) (string, error) {
			i, err := parseImage(s).change(c)
			return i.String(), err
		})
	}
	remaining := budget(limit)
	for _, container := range containers(o) {
		if !remaining.spend(c.Value, 0, 0) {
			return errManifest
		}
		s, ok := container["image"].(string)
		if !ok || s == "" {
			continue
		}
		i, err := parseImage(s).change(c)
		if err != nil {
			return err
		}
		container["image"] = i.String()
	}
	return nil
}

// containers returns the containers and init containers of a Pod or of a pod template. They are
// not copied.
func containers(o *unstructured.Unstructured) []map[string]any {
	var all []map[string]any
	spec := interpreter.PodSpec(o)
	for _, name := range []string{"initContainers", "containers"} {
		list, _ := spec[name].([]any)
		for _, c := range list {
			if container, ok := c.(map[string]any); ok {
				all = append(all, container)
			}
		}
	}
	return all
}

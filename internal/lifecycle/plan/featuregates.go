package plan

import (
	_ "embed" // featuregates.yaml
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

//go:embed featuregates.yaml
var featureGatesYAML []byte

// everyComponent is the key in featuregates.yaml for the feature gates that all Kubernetes
// components have. It also stands for the components in general in featureProblem.
const everyComponent = "every"

// featureGates has the feature gates of the supported Kubernetes versions, from featuregates.yaml.
// That file explains the format.
var featureGates = func() (known struct {
	Releases []string
	// Features has the state of each feature gate by component, name and minor version.
	Features map[string]map[string]map[string]string
},
) {
	if err := yaml.UnmarshalStrict(featureGatesYAML, &known); err != nil {
		panic(err) // the file is embedded
	}
	return known
}()

// featureProblem checks the value of a feature gate. It returns why a component of this Kubernetes
// version would not start with it, and what to do. The text continues a sentence that begins with
// the name of the feature gate. It is "" if the component starts. It is also "" for AllAlpha and
// AllBeta, and if featuregates.yaml does not have the minor version. component is the name of a
// program such as kube-apiserver, or everyComponent.
func featureProblem(version, component, name string, value bool) string {
	i := slices.IndexFunc(featureGates.Releases, func(r string) bool { return minor(r) == minor(version) })
	if i < 0 || name == "AllAlpha" || name == "AllBeta" {
		return ""
	}
	m := fmt.Sprintf("v1.%d", minor(version))
	switch state := featureState(m, component, name); state {
	case "settable", fmt.Sprintf("always %t", value):
		return ""
	case "":
		return absentFeature(version, featureGates.Releases[i], component, name)
	default:
		return fmt.Sprintf("is %s in Kubernetes %s, whose components do not start with %t: leave it out", state, m, value)
	}
}

// featureState returns the state of a feature gate in a minor version m such as v1.36. It is
// "settable", "always true", "always false", or "" if the component does not have the feature gate.
func featureState(m, component, name string) string {
	if state := featureGates.Features[everyComponent][name][m]; state != "" {
		return state
	}
	return featureGates.Features[component][name][m]
}

// absentFeature returns the problem with a feature gate that a component does not have. release is
// the version in featuregates.yaml with the same minor. If version is a later patch, it may have
// added the feature gate. For a single component the result is then "".
func absentFeature(version, release, component, name string) string {
	m := fmt.Sprintf("v1.%d", minor(version))
	for _, other := range slices.Sorted(maps.Keys(featureGates.Features)) {
		if featureGates.Features[other][name][m] != "" {
			return fmt.Sprintf("is a feature gate of %s alone, and other components do not start with it: set feature-gates in the arguments of %s", other, other)
		}
	}
	var had []string
	for _, features := range featureGates.Features {
		had = append(had, slices.Sorted(maps.Keys(features[name]))...)
	}
	slices.Sort(had)
	switch {
	case len(had) > 0 && minor(had[0]+".0") > minor(version):
		return fmt.Sprintf("is no feature gate of Kubernetes %s, which does not start with it: %s is the first that has it", m, had[0])
	case len(had) > 0:
		return fmt.Sprintf("is no feature gate of Kubernetes %s any more, which does not start with it; %s was the last that had it: leave it out", m, had[len(had)-1])
	}
	way := ""
	if patch(version) > patch(release) { // a later patch may have added the feature gate
		if component != everyComponent {
			return ""
		}
		way = fmt.Sprintf("; if %s added it, set feature-gates in the arguments of each component", version)
	}
	return fmt.Sprintf("is no feature gate of Kubernetes %s, which does not start with it: leave it out if an earlier version had it, or correct its name%s", m, way)
}

// validateFeatures adds an error for each feature gate that the component does not have, or with
// whose value the component does not start. p is the field of the spec that has the feature gates.
func (v *validator) validateFeatures(p *field.Path, component string, features map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(features)) {
		if !featurePattern.MatchString(name) {
			v.invalidf(p.Key(name), name, "is not the name of a feature gate, such as NodeSwap")
		} else if problem := featureProblem(v.spec.Kubernetes.Version, component, name, features[name]); problem != "" {
			v.invalidf(p.Key(name), features[name], "%s %s", name, problem)
		}
	}
}

// featuresOfFlag returns the feature gates in the value of a component's flag, such as
// A=true,B=false. A prefix kube: is removed. Parts of any other form are left out, because the
// component checks them itself.
func featuresOfFlag(value string) map[string]bool {
	features := map[string]bool{}
	for part := range strings.SplitSeq(value, ",") {
		name, state, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(part), "kube:"), "=")
		if on, err := strconv.ParseBool(strings.TrimSpace(state)); err == nil {
			features[strings.TrimSpace(name)] = on
		}
	}
	return features
}

// featuresOfConfiguration returns the feature gates in the settings of a component's configuration
// file. Values that are not booleans are left out. settings may be nil.
func featuresOfConfiguration(settings map[string]any) map[string]bool {
	features := map[string]bool{}
	section, _ := settings["featureGates"].(map[string]any)
	for name, state := range section {
		if on, ok := state.(bool); ok {
			features[name] = on
		}
	}
	return features
}

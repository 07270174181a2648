package plan

import (
	"slices"
	"strings"
	"testing"

	_ "k8s.io/apiextensions-apiserver/pkg/features"
	_ "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"orrery.dev/orrery/internal/lifecycle/catalog"
)

func TestFeatureProblem(t *testing.T) {
	cases := map[string]struct {
		version, component, name string
		value                    bool
		problem                  string
	}{
		"Settable":               {version: "v1.36.3", name: "RotateKubeletServerCertificate", value: true},
		"LongGone":               {version: "v1.36.3", name: "TTLAfterFinished", value: true, problem: "is no feature gate of Kubernetes v1.36"},
		"LongGoneInALaterPatch":  {version: "v1.36.99", name: "TTLAfterFinished", value: true, problem: "if v1.36.99 added it, set feature-gates"},
		"WentWithThisMinor":      {version: "v1.36.3", name: "ComponentSLIs", value: true, problem: "any more"},
		"ComesWithALaterMinor":   {version: "v1.35.0", name: "AtomicFIFO", value: true, problem: "v1.36 is the first that has it"},
		"LockedToTrue":           {version: "v1.36.3", name: "NodeSwap", value: false, problem: "is always true in Kubernetes v1.36"},
		"AsItIsLocked":           {version: "v1.36.3", name: "NodeSwap", value: true},
		"AllAlpha":               {version: "v1.36.3", name: "AllAlpha", value: true},
		"OfOneComponent":         {version: "v1.36.3", name: "ControllerManagerReleaseLeaderElectionLockOnExit", value: true, problem: "of kube-controller-manager alone"},
		"InItsComponent":         {version: "v1.36.3", component: fileControllerManager, name: "ControllerManagerReleaseLeaderElectionLockOnExit", value: true},
		"InAnotherComponent":     {version: "v1.36.3", component: fileScheduler, name: "ControllerManagerReleaseLeaderElectionLockOnExit", value: true, problem: "alone"},
		"UnknownMinor":           {version: "v1.31.0", name: "TTLAfterFinished", value: true},
		"ComponentOfALaterPatch": {version: "v1.36.99", component: fileKubelet, name: "FixOfATornWrite", value: true},
		"ComponentOfThisPatch":   {version: "v1.36.3", component: fileKubelet, name: "FixOfATornWrite", value: true, problem: "correct its name"},
	}
	for about, c := range cases {
		t.Run(about, func(t *testing.T) {
			component := c.component
			if component == "" {
				component = everyComponent
			}
			got := featureProblem(c.version, component, c.name, c.value)
			if c.problem == "" && got != "" || !strings.Contains(got, c.problem) {
				t.Errorf("problem %q, want %q", got, c.problem)
			}
		})
	}
}

// TestFeatureGatesOfTheLibraries: featuregates.yaml has what the libraries of this build register,
// with their locks. It fails when these libraries become those of another minor.
func TestFeatureGatesOfTheLibraries(t *testing.T) {
	for feature, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		name := string(feature)
		if name == "AllAlpha" || name == "AllBeta" {
			continue
		}
		want := "settable"
		if spec.LockToDefault {
			want = map[bool]string{true: "always true", false: "always false"}[spec.Default]
		}
		if got := featureGates.Features[everyComponent][name]["v1.36"]; got != want {
			t.Errorf("%s of v1.36 is %q in featuregates.yaml, want %q: run hack/featuregates.go", name, got, want)
		}
	}
}

// TestFeatureGatesOfTheCatalog: featuregates.yaml has each minor of the catalog.
func TestFeatureGatesOfTheCatalog(t *testing.T) {
	known, err := catalog.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range known.Supported() {
		if !slices.ContainsFunc(featureGates.Releases, func(r string) bool { return minor(r) == minor(release+".0") }) {
			t.Errorf("featuregates.yaml has no release of %s: run hack/featuregates.go", release)
		}
	}
}

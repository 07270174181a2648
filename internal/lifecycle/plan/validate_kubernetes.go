package plan

import (
	_ "embed" // owned.yaml
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
)

// flagPattern matches the name of a flag, without leading dashes.
var flagPattern = regexp.MustCompile(`^[a-z][a-z0-9]*([-_.][a-z0-9]+)*$`)

//go:embed owned.yaml
var ownedYAML []byte

// owned lists the flags and settings of components that only the plan may set, from owned.yaml. The
// values of Flags say which field of the spec the user sets instead, or "".
var owned = func() (o struct {
	Flags                      map[string]map[string]string
	Kubelet, Proxy, ProxyFlags []string
},
) {
	if err := yaml.UnmarshalStrict(ownedYAML, &o); err != nil {
		panic(err) // the file is embedded
	}
	return o
}()

func (v *validator) validateKubernetes(p *field.Path) {
	k := v.spec.Kubernetes
	if !versionPattern.MatchString(k.Version) {
		v.invalidf(p.Child("version"), k.Version, "must be a version such as v1.36.3")
	} else if n := minor(k.Version); n < minMinor {
		v.invalidf(p.Child("version"), k.Version, "must be v1.%d or newer", minMinor)
	}
	v.invalidName(p.Child("clusterName"), k.ClusterName, validation.IsDNS1123Label)
	v.invalidName(p.Child("dnsDomain"), k.DNSDomain, validation.IsDNS1123Subdomain)
	v.oneOf(p.Child("proxyMode"), k.ProxyMode, modeNFTables, modeIPTables, modeIPVS)
	v.bounded(p.Child("maxPods"), int64(k.MaxPods), 1, 1000)
	if k.PodPidsLimit < 0 {
		v.invalidf(p.Child("podPidsLimit"), k.PodPidsLimit, "must be at least 1, or unset for no bound")
	}
	for i, san := range k.APIServerCertExtraSANs {
		if _, err := netip.ParseAddr(san); err == nil {
			continue
		}
		if len(validation.IsDNS1123Subdomain(san)) > 0 && len(validation.IsWildcardDNS1123Subdomain(san)) > 0 {
			v.invalidf(p.Child("apiserverCertExtraSans").Index(i), san, "must be a DNS name or an IP address")
		}
	}
	v.validateFeatures(p.Child("featureGates"), everyComponent, k.FeatureGates)
	v.validateArgs(p.Child("apiserverArgs"), fileAPIServer, k.APIServerArgs)
	v.validateArgs(p.Child("controllerManagerArgs"), fileControllerManager, k.ControllerManagerArgs)
	v.validateArgs(p.Child("schedulerArgs"), fileScheduler, k.SchedulerArgs)
	v.validateArgs(p.Child("kubeletArgs"), fileKubelet, k.KubeletArgs)
	for i, name := range v.validateArgs(p.Child("kubeProxyArgs"), fileKubeProxy, k.KubeProxyArgs) {
		if name != "" && !slices.Contains(owned.ProxyFlags, name) {
			v.add(field.Forbidden(p.Child("kubeProxyArgs").Index(i), fmt.Sprintf("kube-proxy does not heed --%s beside its configuration file: use kubeProxyConfiguration", name)))
		}
	}
	if c := k.KubeletConfiguration; c != nil {
		v.validateConfiguration(p.Child("kubeletConfiguration"), fileKubelet, c.Raw, owned.Kubelet)
	}
	if c := k.KubeProxyConfiguration; c != nil {
		v.validateConfiguration(p.Child("kubeProxyConfiguration"), fileKubeProxy, c.Raw, owned.Proxy)
	}
}

// validateArgs checks the user's arguments for a program. It returns the names of the flags in the
// order of args, with "-" for "_", and "" for an invalid argument. A flag that only Orrery may set
// is an error. Errors repeat no value, because it may be secret.
func (v *validator) validateArgs(p *field.Path, program string, args clusterv1alpha1.Args) []string {
	names := make([]string, len(args))
	for i, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		switch {
		case strings.HasPrefix(name, "-"):
			v.invalidf(p.Index(i), field.OmitValueType{}, "must be name=value without leading dashes")
		case !ok:
			v.invalidf(p.Index(i), field.OmitValueType{}, "must be name=value; a flag without a value is name=true")
		case !flagPattern.MatchString(name):
			v.invalidf(p.Index(i), field.OmitValueType{}, "does not begin with the name of a flag")
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
			v.invalidf(p.Index(i), field.OmitValueType{}, "the value of %s must be one line", name)
		default:
			names[i] = strings.ReplaceAll(name, "_", "-") // the programs read names in the same way
		}
		if names[i] == flagFeatureGates && program != fileEtcd {
			v.validateFeatures(p.Index(i), program, featuresOfFlag(value))
		}
		if instead, set := owned.Flags[program][names[i]]; set {
			way := "leave it out"
			if instead != "" {
				way = "use spec.provision." + instead
			}
			v.add(field.Forbidden(p.Index(i), fmt.Sprintf("--%s of %s is set by Orrery: %s", names[i], program, way)))
		}
	}
	return names
}

// validateConfiguration checks the user's settings that are merged into the configuration file of a
// program. raw must be a JSON object. It must not have the given keys, which only Orrery may set.
func (v *validator) validateConfiguration(p *field.Path, program string, raw []byte, keys []string) {
	settings := v.object(p, raw)
	v.validateFeatures(p.Child("featureGates"), program, featuresOfConfiguration(settings))
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if slices.Contains(keys, key) {
			v.add(field.Forbidden(p.Child(key), "is set by Orrery: leave it out"))
		}
	}
}

// object parses a JSON object in the field p. For other input it adds an error and returns nil.
func (v *validator) object(p *field.Path, raw []byte) map[string]any {
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		v.invalidf(p, field.OmitValueType{}, "must be an object")
	}
	return o
}

// minor returns the Y of a version v1.Y.Z, or -1 for any other text.
func minor(version string) int { return versionPart(version, 1) }

// patch returns the Z of a version v1.Y.Z, or -1 for any other text.
func patch(version string) int { return versionPart(version, 2) }

// versionPart returns the number in a group of versionPattern, or -1 for any other text.
func versionPart(version string, group int) int {
	parts := versionPattern.FindStringSubmatch(version)
	if parts == nil {
		return -1
	}
	n, err := strconv.Atoi(parts[group])
	if err != nil {
		return -1
	}
	return n
}

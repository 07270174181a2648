package hub

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	lifecyclev1alpha1 "orrery.dev/orrery/api/lifecycle/v1alpha1"
	policyv1alpha1 "orrery.dev/orrery/api/policy/v1alpha1"
	workv1alpha2 "orrery.dev/orrery/api/work/v1alpha2"
)

// Scheme returns a new scheme with the kinds that the hub serves: Kubernetes' own,
// CustomResourceDefinitions and Orrery's.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme,
		apiextensionsv1.AddToScheme,
		clusterv1alpha1.AddToScheme,
		policyv1alpha1.AddToScheme,
		workv1alpha2.AddToScheme,
		appsv1alpha1.AddToScheme,
		lifecyclev1alpha1.AddToScheme,
		configv1alpha1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}

// FindKubeBinary returns the absolute path of the binary that contains the Kubernetes components.
// If given is not "", it is that binary, looked up in PATH if it has no slash. Otherwise it is
// orrery-kube beside the running executable, or else in PATH. It is an error if the binary does not
// exist.
func FindKubeBinary(given string) (string, error) { return findKubeBinary(given) }

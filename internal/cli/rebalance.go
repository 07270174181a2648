package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
	"orrery.dev/orrery/internal/hub"
)

// rebalancing are the flags of rebalance.
type rebalancing struct {
	streams

	hub       hubFlags
	namespace string
	timeout   time.Duration
}

// keptRebalancer is how long a WorkloadRebalancer is there to be looked at after it is finished.
const keptRebalancer = time.Hour

func newRebalance(s streams) *cobra.Command {
	r := &rebalancing{streams: s}
	cmd := &cobra.Command{
		Use:   "rebalance TYPE NAME ... | TYPE/NAME ...",
		Short: "Have templates placed anew, as if they were placed nowhere yet",
		Long: `Have templates placed anew, as if they were placed nowhere yet: a WorkloadRebalancer is made on the
hub, and its result waited for. What moves stays until as much is available where it goes.`,
		Example: `  orrery rebalance deploy/web sts/db -n shop`,
		RunE:    func(cmd *cobra.Command, args []string) error { return asKubectl(r.run(cmd.Context(), args)) },
	}
	r.hub.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&r.namespace, "namespace", "n", "", "where the objects are (default: the namespace of the context, or default)")
	flags.DurationVar(&r.timeout, "timeout", time.Minute, "how long to wait until all are placed anew")
	// It fails for a flag that is not there, or has one already.
	_ = cmd.RegisterFlagCompletionFunc("namespace", r.hub.completeNamespaces)
	return cmd
}

func (r *rebalancing) run(ctx context.Context, args []string) error {
	asked, err := parseNamed(args)
	if err != nil {
		return err
	}
	if !asked.byName() {
		return usageError{errors.New("want the objects, TYPE NAME ... or TYPE/NAME ..., as in deploy/web")}
	}
	h, err := r.hub.api(ctx, r.err)
	if err != nil {
		return err
	}
	at, err := h.below("", r.namespace)
	if err != nil {
		return err
	}
	mapper, err := at.ToRESTMapper()
	if err != nil {
		return err
	}
	o := &appsv1alpha1.WorkloadRebalancer{ObjectMeta: metav1.ObjectMeta{GenerateName: "rebalance-"}}
	o.Spec.TTLSecondsAfterFinished = new(int32(keptRebalancer / time.Second))
	for _, kind := range asked.types {
		m, err := mappingOf(mapper, kind)
		if err != nil {
			return fmt.Errorf("the hub: %w", err)
		}
		namespace := at.namespace
		if m.Scope.Name() == meta.RESTScopeNameRoot {
			namespace = ""
		}
		for _, name := range asked.names[kind] {
			o.Spec.Workloads = append(o.Spec.Workloads, appsv1alpha1.ObjectReference{
				APIVersion: m.GroupVersionKind.GroupVersion().String(), Kind: m.GroupVersionKind.Kind, Namespace: namespace, Name: name,
			})
		}
	}
	c, err := client.New(h.config, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return fmt.Errorf("reach the hub at %s (from %s): %w", h.config.Host, h.path, err)
	}
	if err := c.Create(ctx, o); err != nil {
		return err
	}
	return r.wait(ctx, c, o)
}

// wait waits for the result, and prints it.
func (r *rebalancing) wait(ctx context.Context, c client.Client, o *appsv1alpha1.WorkloadRebalancer) error {
	const often = 250 * time.Millisecond
	err := wait.PollUntilContextTimeout(ctx, often, r.timeout, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, types.NamespacedName{Name: o.Name}, o)
		return err == nil && o.Status.ObservedGeneration == o.Generation && o.Status.FinishTime != nil, err
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("workloadrebalancer %s is not finished after %s; the hub goes on with it", o.Name, r.timeout)
	}
	if err != nil {
		return err
	}
	failed := 0
	for _, w := range o.Status.ObservedWorkloads {
		what := strings.ToLower(w.Workload.Kind) + "/" + w.Workload.Name
		if w.Result == appsv1alpha1.RebalanceSuccessful {
			err = say(r.out, "%s is placed anew\n", what)
		} else {
			failed++
			err = say(r.err, "error: %s is not placed anew: %s\n", what, notRebalanced(ctx, c, &w))
		}
		if err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d objects are not placed anew", failed, len(o.Status.ObservedWorkloads))
	}
	return nil
}

// notRebalanced says why an object is not placed anew.
func notRebalanced(ctx context.Context, c client.Client, w *appsv1alpha1.ObservedWorkload) string {
	if w.Reason == appsv1alpha1.RebalanceNoPolicy {
		return "no policy places it: it is where others need it, or its policy is gone"
	}
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.FromAPIVersionAndKind(w.Workload.APIVersion, w.Workload.Kind))
	switch err := c.Get(ctx, types.NamespacedName{Namespace: w.Workload.Namespace, Name: w.Workload.Name}, o); {
	case apierrors.IsNotFound(err) && w.Workload.Namespace != "":
		return fmt.Sprintf("it is not in namespace %q of the hub: name another with --namespace", w.Workload.Namespace)
	case apierrors.IsNotFound(err):
		return "the hub does not have it"
	case err != nil:
		return string(w.Reason)
	default:
		return "no policy places it"
	}
}

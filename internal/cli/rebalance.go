package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "orrery.dev/orrery/api/apps/v1alpha1"
)

// rebalancing has the flags of "orrery rebalance", which chooses the clusters of templates again.
type rebalancing struct{ onTemplates }

// keptRebalancer is how long the hub keeps a WorkloadRebalancer after it has finished, so that
// users can inspect it: one hour.
const keptRebalancer = time.Hour

func newRebalance(s streams) *cobra.Command {
	r := &rebalancing{onTemplates{streams: s}}
	cmd := &cobra.Command{
		Use:   "rebalance TYPE NAME ... | TYPE/NAME ...",
		Short: "Choose the clusters of templates again, as if they were not placed yet",
		Long: `Choose the clusters of templates again, as if they were not placed yet. The command creates a
WorkloadRebalancer on the hub and waits for its result. Old copies keep running until the new ones are ready.`,
		Example: `  orrery rebalance deploy/web sts/db -n shop`,
		RunE:    func(cmd *cobra.Command, args []string) error { return asKubectl(r.run(cmd.Context(), args)) },
	}
	r.add(cmd, "how long to wait until all are placed again")
	return cmd
}

func (r *rebalancing) run(ctx context.Context, args []string) error {
	named, c, err := r.reach(ctx, args)
	if err != nil {
		return err
	}
	o := &appsv1alpha1.WorkloadRebalancer{ObjectMeta: metav1.ObjectMeta{GenerateName: "rebalance-"}}
	o.Spec.TTLSecondsAfterFinished = new(int32(keptRebalancer / time.Second))
	for _, t := range named {
		o.Spec.Workloads = append(o.Spec.Workloads, appsv1alpha1.ObjectReference{
			APIVersion: t.kind.GroupVersion().String(), Kind: t.kind.Kind, Namespace: t.namespace, Name: t.name,
		})
	}
	if err := c.Create(ctx, o); err != nil {
		return err
	}
	return r.result(ctx, c, o)
}

// result waits until the hub has finished the WorkloadRebalancer o, and prints the result for each
// of its objects. It stores the present state in o. It returns an error after --timeout, and if the
// hub could not decide for an object again. The hub finishes its work in any case.
func (r *rebalancing) result(ctx context.Context, c client.Client, o *appsv1alpha1.WorkloadRebalancer) error {
	err := r.wait(ctx, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, types.NamespacedName{Name: o.Name}, o)
		return err == nil && o.Status.ObservedGeneration == o.Generation && o.Status.FinishTime != nil, err
	}, func() error {
		return fmt.Errorf("workloadrebalancer %s is not finished after %s; the hub goes on with it", o.Name, r.timeout)
	})
	if err != nil {
		return err
	}
	failed := 0
	for _, w := range o.Status.ObservedWorkloads {
		what := strings.ToLower(w.Workload.Kind) + "/" + w.Workload.Name
		if w.Result == appsv1alpha1.RebalanceSuccessful {
			err = say(r.out, "%s is placed again\n", what)
		} else {
			failed++
			err = say(r.err, "error: %s is not placed again: %s\n", what, notRebalanced(ctx, c, &w))
		}
		if err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d objects are not placed again", failed, len(o.Status.ObservedWorkloads))
	}
	return nil
}

// notRebalanced returns the reason, for the user, why the hub did not choose the clusters of an
// object again. It requests the object from the hub to see whether it exists.
func notRebalanced(ctx context.Context, c client.Client, w *appsv1alpha1.ObservedWorkload) string {
	if w.Reason == appsv1alpha1.RebalanceNoPolicy {
		return "no policy places it: it is a dependency of other objects, or its policy is gone"
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

package placement

import (
	"context"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	"orrery.dev/orrery/internal/queue"
)

// longestNames is the greatest length of the annotation with the names of all clusters, in bytes.
// An API server accepts 256 KiB of annotations.
const longestNames = 200 << 10

// namesWriter writes the names of the fleet's clusters into an annotation of the namespace that has
// the clusters' credentials. The hub's API server has that namespace in memory. It warns a user who
// writes a policy that names a cluster which is not in the annotation. The annotation may be a
// moment old, and serves only these warnings.
type namesWriter struct {
	client client.Client
	reader client.Reader                       // reads the namespace without a cache
	names  func() (names []string, known bool) // of all clusters
	synced toolscache.InformerSynced           // whether the clusters are listed
	queue  *queue.Queue[struct{}]

	written *string // the value that this process wrote or found; nil: unknown
}

func newNamesWriter(c client.Client, reader client.Reader, synced toolscache.InformerSynced, names func() ([]string, bool)) *namesWriter {
	n := &namesWriter{client: c, reader: reader, names: names, synced: synced}
	n.queue = queue.New(1, firstRetry, lastRetry, n.write)
	return n
}

// Start implements manager.Runnable. It writes the names once the clusters are listed, and
// after each change, until ctx ends. It returns nil.
func (n *namesWriter) Start(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), n.synced) {
		return nil // ctx has ended
	}
	n.changed()
	n.queue.Run(ctx)
	return nil
}

// changed queues a write of the names. It may be called before Start.
func (n *namesWriter) changed() { n.queue.Add(struct{}{}) }

// write writes the annotation if its value differs. If the names are longer than longestNames, it
// writes "", which ends the warnings. It writes nothing while the names are unknown, or if the
// namespace does not exist.
func (n *namesWriter) write(ctx context.Context, _ struct{}) queue.Next {
	names, known := n.names()
	if !known {
		return queue.Next{}
	}
	slices.Sort(names)
	wanted := strings.Join(names, ",")
	if len(wanted) > longestNames {
		wanted = "" // without the names there are no warnings
	}
	if n.written != nil && *n.written == wanted {
		return queue.Next{}
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	err := n.reader.Get(ctx, client.ObjectKeyFromObject(ns), ns)
	if err == nil && ns.Annotations[clusterv1alpha1.NamesAnnotation] != wanted {
		before := client.MergeFrom(ns.DeepCopy())
		metav1.SetMetaDataAnnotation(&ns.ObjectMeta, clusterv1alpha1.NamesAnnotation, wanted)
		err = n.client.Patch(ctx, ns, before)
	}
	switch {
	case err == nil:
		n.written = &wanted
		return queue.Next{}
	// The namespace exists before the hub starts. If it is missing, nothing is written.
	case ctx.Err() != nil || apierrors.IsNotFound(err):
		return queue.Next{}
	default:
		logr.FromContextOrDiscard(ctx).WithName("placement").Error(err, "write the names of the clusters for the warnings of the hub's API server")
		return queue.Next{Backoff: true}
	}
}

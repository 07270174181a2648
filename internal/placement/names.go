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

// longestNames bounds the annotation with the names of all clusters: an API server accepts 256
// KiB of annotations.
const longestNames = 200 << 10

// namesWriter writes the names of the fleet's clusters into an annotation of the namespace of
// the clusters' credentials. The hub's API server has that namespace in memory, and warns of a
// policy that names another cluster. The annotation may be a moment old, and serves only these
// warnings.
type namesWriter struct {
	client client.Client
	reader client.Reader // not cached
	names  func() (names []string, known bool)
	synced toolscache.InformerSynced
	queue  *queue.Queue[struct{}]

	written *string // the value that this process wrote or found; nil: unknown
}

func newNamesWriter(c client.Client, reader client.Reader, synced toolscache.InformerSynced, names func() ([]string, bool)) *namesWriter {
	n := &namesWriter{client: c, reader: reader, names: names, synced: synced}
	n.queue = queue.New(1, firstRetry, lastRetry, n.write)
	return n
}

// Start implements manager.Runnable.
func (n *namesWriter) Start(ctx context.Context) error {
	if !toolscache.WaitForCacheSync(ctx.Done(), n.synced) {
		return nil // ctx has ended
	}
	n.changed()
	n.queue.Run(ctx)
	return nil
}

// changed queues a write of the names.
func (n *namesWriter) changed() { n.queue.Add(struct{}{}) }

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
	// The hub creates the namespace before it starts.
	case ctx.Err() != nil || apierrors.IsNotFound(err):
		return queue.Next{}
	default:
		logr.FromContextOrDiscard(ctx).WithName("placement").Error(err, "write the names of the clusters for the warnings of the hub's API server")
		return queue.Next{Backoff: true}
	}
}

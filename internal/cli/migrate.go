package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "orrery.dev/orrery/api/cluster/v1alpha1"
	configv1alpha1 "orrery.dev/orrery/api/config/v1alpha1"
	"orrery.dev/orrery/internal/hub"
	"orrery.dev/orrery/internal/member"
)

func newMigrate(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Take over what another product manages",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMigrateClusterpedia(s))
	return cmd
}

// migration has the flags of "orrery migrate clusterpedia", which joins the clusters of an
// installation of Clusterpedia to the hub.
type migration struct {
	streams

	from, to         hubFlags // the cluster with Clusterpedia, and the hub
	secretsNamespace string
	dryRun           bool
	output           string
	timeout          time.Duration
}

func newMigrateClusterpedia(s streams) *cobra.Command {
	m := &migration{streams: s}
	cmd := &cobra.Command{
		Use:   "clusterpedia --kubeconfig FILE [CLUSTER ...]",
		Short: "Join the clusters of a Clusterpedia installation, and mirror what it synchronizes",
		Long: `Join the clusters of a Clusterpedia installation, and mirror what it synchronizes:
PediaClusters become Clusters, ClusterSyncResources become MirrorPolicies. Nothing is
written to the installation, nor to the clusters.

Everything is read and checked first: that each cluster answers, that its credentials
suffice, that no name is taken. If anything is refused nothing is written. Run again, it
goes on where it was, and leaves what it made before as it is by then; but what changed in
Clusterpedia since of a cluster's address, certificate authority or credentials is renewed.`,
		Example: `  orrery migrate clusterpedia --kubeconfig clusterpedia.kubeconfig --dry-run -o yaml
  orrery migrate clusterpedia --kubeconfig clusterpedia.kubeconfig oak pine`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if m.from.kubeconfig == "" {
				return usageError{errors.New("--kubeconfig is required: the kubeconfig file with which Clusterpedia's objects are read")}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
			defer cancel()
			return m.run(ctx, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&m.from.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster that Clusterpedia is installed in")
	flags.StringVar(&m.from.context, "context", "", "context in that file (default: its current context)")
	flags.StringVar(&m.to.kubeconfig, "hub-kubeconfig", "", "kubeconfig of the hub (default: $KUBECONFIG, then the hub's or the demo's data directory on this machine)")
	flags.StringVar(&m.to.context, "hub-context", "", "context in the hub's kubeconfig (default: hub, where there is one, else the current context)")
	flags.StringVar(&m.secretsNamespace, "secrets-namespace", "clusterpedia-system", "namespace of the Secrets that authenticationFrom of PediaClusters names")
	flags.BoolVar(&m.dryRun, "dry-run", false, "read and check everything, say what would be done, and write nothing")
	flags.DurationVar(&m.timeout, "timeout", 10*time.Minute, "how long it may take in all")
	addOutput(cmd, &m.output)
	return cmd
}

// planned is what a migration will write to the hub, and the report about that for the user.
// migration.plan fills it.
type planned struct {
	policies []*configv1alpha1.MirrorPolicy // MirrorPolicies to create
	joins    []member.JoinOptions
	report   []migrated
}

func (m *migration) run(ctx context.Context, only []string) error {
	source, err := m.source()
	if err != nil {
		return err
	}
	_, c, id, err := m.to.connect(ctx)
	if err != nil {
		return err
	}
	p, err := m.plan(ctx, source, c, id, only)
	if err != nil {
		return err
	}
	if !m.dryRun {
		if err := m.do(ctx, c, p); err != nil {
			return err
		}
	}
	return printValue(m.out, m.output, map[string]any{"dryRun": m.dryRun, "objects": p.report}, func(w io.Writer) error {
		return printMigrated(w, p.report, m.dryRun)
	})
}

// source returns a client of the cluster in which Clusterpedia is installed. Without --context it
// uses the current context of the kubeconfig. Other commands prefer a context named hub, which
// would be that of our own hub.
func (m *migration) source() (client.Client, error) {
	from := m.from
	if from.context == "" {
		raw, err := clientcmd.LoadFromFile(from.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig: %w", err)
		}
		from.context = raw.CurrentContext
	}
	cfg, path, err := from.config()
	if err != nil {
		return nil, err
	}
	cfg.Timeout = 30 * time.Second
	c, err := client.New(cfg, client.Options{Scheme: hub.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("reach Clusterpedia's cluster at %s (from %s): %w", cfg.Host, path, err)
	}
	return c, nil
}

// listPedia lists the objects of a kind of Clusterpedia in all namespaces, sorted by name. If the
// kind does not exist, absent is true for the error.
func listPedia(ctx context.Context, c client.Client, gvk schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := c.List(ctx, list); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return list.Items, nil
}

// absent reports whether err means that a kind or an object does not exist. It is false for nil.
func absent(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }

// plan reads the objects of Clusterpedia with the client source, and checks that they can be
// migrated to the hub. c is a client of the hub, whose ID is id. It writes nothing: the hub checks
// new objects in a dry run. only has the names of PediaClusters to migrate; empty: all. If an
// object cannot be migrated, the error has the reasons for all such objects. A list that fails ends
// plan at once.
func (m *migration) plan(ctx context.Context, source, c client.Client, id string, only []string) (*planned, error) {
	p := &planned{}
	syncs, err := listPedia(ctx, source, pediaSyncResources)
	if err != nil && !absent(err) { // older versions of Clusterpedia do not have the kind
		return nil, fmt.Errorf("list ClusterSyncResources: %w", err)
	}
	var refused []error
	for i := range syncs {
		refused = append(refused, m.planPolicy(ctx, c, p, &syncs[i]))
	}
	clusters, err := listPedia(ctx, source, pediaClusters)
	if absent(err) {
		return nil, errors.New("there are no PediaClusters of cluster.clusterpedia.io/v1alpha2 there: is Clusterpedia installed in that cluster? See --kubeconfig and --context")
	}
	if err != nil {
		return nil, fmt.Errorf("list PediaClusters: %w", err)
	}
	seen := map[string]string{}
	for i := range clusters {
		if len(only) == 0 || slices.Contains(only, clusters[i].GetName()) {
			if err := m.planCluster(ctx, source, c, p, id, &clusters[i], syncs, seen); err != nil {
				refused = append(refused, fmt.Errorf("PediaCluster %s: %w", clusters[i].GetName(), err))
			}
		}
	}
	for _, name := range only {
		if !slices.ContainsFunc(clusters, func(u unstructured.Unstructured) bool { return u.GetName() == name }) {
			refused = append(refused, fmt.Errorf("there is no PediaCluster %s", name))
		}
	}
	for _, gvk := range pediaOthers {
		others, err := listPedia(ctx, source, gvk)
		if err != nil && !absent(err) {
			return nil, fmt.Errorf("list %s: %w", gvk.Kind, err)
		}
		for i := range others {
			p.report = append(p.report, migrated{
				From: gvk.Kind + "/" + others[i].GetName(), Action: migrateLeave,
				Notes: []string{"clusters are not imported by rule here: the PediaClusters that it made are taken over, later ones are to be joined"},
			})
		}
	}
	if err := errors.Join(refused...); err != nil {
		return nil, fmt.Errorf("nothing was written:\n%w\nName the clusters to be taken over to leave others out", err)
	}
	return p, nil
}

// planPolicy adds to p the MirrorPolicy for a ClusterSyncResources, and its row of the report. If
// an earlier run created the policy, p gets only the row. It is an error if the hub has a policy of
// the same name that was not created from this object.
func (m *migration) planPolicy(ctx context.Context, c client.Client, p *planned, u *unstructured.Unstructured) error {
	var s pediaSync
	if err := readPedia(u, &s); err != nil {
		return err
	}
	policy, report, err := policyOf(&s)
	if err != nil || policy == nil {
		p.report = append(p.report, report)
		return err
	}
	known := &configv1alpha1.MirrorPolicy{}
	switch err := c.Get(ctx, client.ObjectKey{Name: policy.Name}, known); {
	case apierrors.IsNotFound(err):
		if err := c.Create(ctx, policy.DeepCopy(), client.DryRunAll); err != nil {
			return fmt.Errorf("%s as MirrorPolicy: %w", report.From, err)
		}
		p.policies = append(p.policies, policy)
	case err != nil:
		return fmt.Errorf("get MirrorPolicy %s: %w", policy.Name, err)
	case known.Annotations[annotationMigrated] != policy.Annotations[annotationMigrated]:
		return fmt.Errorf("%s: there is a MirrorPolicy %s that was not made from it: delete or rename that one", report.From, policy.Name)
	default:
		report.Action, report.Object = migrateKeep, nil
	}
	p.report = append(p.report, report)
	return nil
}

// planCluster adds to p the join of the cluster of a PediaCluster, and its row of the report. If an
// earlier run joined the cluster and nothing has changed since, p gets only the row. planCluster
// connects to the cluster to check the credentials. seen has the names of the PediaClusters so far
// by the ID of their cluster; a second one for a cluster is an error.
func (m *migration) planCluster(ctx context.Context, source, c client.Client, p *planned, id string, u *unstructured.Unstructured, syncs []unstructured.Unstructured, seen map[string]string) error {
	var pc pediaCluster
	if err := readPedia(u, &pc); err != nil {
		return err
	}
	var shared *pediaSync // the ClusterSyncResources of the PediaCluster; nil: none
	ref := pc.Spec.SyncResourcesRefName
	if i := slices.IndexFunc(syncs, func(u unstructured.Unstructured) bool { return u.GetName() == ref }); i >= 0 {
		shared = &pediaSync{}
		if err := readPedia(&syncs[i], shared); err != nil {
			return err
		}
	}
	mirror, labels, report := clusterOf(&pc, shared)
	if !pc.DeletionTimestamp.IsZero() {
		p.report = append(p.report, migrated{From: report.From, Action: migrateLeave, Notes: []string{"it is being deleted"}})
		return nil
	}
	if err := checkName(pc.Name); err != nil {
		return err
	}
	if ref != "" && shared == nil {
		return fmt.Errorf("syncResourcesRefName: there is no ClusterSyncResources %s", ref)
	}
	from := origin("PediaCluster", &pc.ObjectMeta)
	known := &clusterv1alpha1.Cluster{}
	if err := c.Get(ctx, client.ObjectKey{Name: pc.Name}, known); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Cluster %s: %w", pc.Name, err)
	} else if err != nil {
		known = nil
	} else if known.Annotations[annotationMigrated] != from {
		return fmt.Errorf("there is a Cluster %s that was not made from it: unjoin that one, or leave this one out", pc.Name)
	}
	kubeconfig, notes, err := credentialsOf(&pc, func(key pediaKey) ([]byte, error) {
		secret := &corev1.Secret{}
		if err := source.Get(ctx, client.ObjectKey{Namespace: m.secretsNamespace, Name: key.Name}, secret); err != nil {
			return nil, fmt.Errorf("authenticationFrom: Secret %s/%s (see --secrets-namespace): %w", m.secretsNamespace, key.Name, err)
		}
		if len(secret.Data[key.Key]) == 0 {
			return nil, fmt.Errorf("authenticationFrom: Secret %s/%s has no key %s", m.secretsNamespace, key.Name, key.Key)
		}
		return secret.Data[key.Key], nil
	})
	if err != nil {
		return err
	}
	reached, err := accessOf(kubeconfig)
	if err != nil {
		return err
	}
	digests := reached.digests(string(pc.UID))
	taken, err := json.Marshal(digests)
	if err != nil {
		return fmt.Errorf("encode %s: %w", annotationTaken, err)
	}
	if known == nil {
		report.Taken = append(report.Taken, "credentials, into a Secret that the Cluster owns")
	} else {
		changed, secret, err := changedSince(ctx, c, known, digests)
		if err != nil {
			return err
		}
		if len(changed) == 0 && known.DeletionTimestamp.IsZero() {
			report.Action = migrateKeep
			p.report = append(p.report, report)
			return nil
		}
		report.Action, report.Taken = migrateRenew, changed
		labels = nil // labels that users have changed since stay
		reached.keep(&known.Spec, secret.Data, changed)
		if kubeconfig, err = clientcmd.Write(*reached.config); err != nil {
			return errors.New("its credentials cannot be written as a kubeconfig")
		}
	}
	if reached.server.InsecureSkipTLSVerify {
		report.Notes = append(report.Notes, notes...)
	}
	join := member.JoinOptions{
		Name: pc.Name, Kubeconfig: kubeconfig, HubID: id, Labels: labels, Mirror: mirror,
		Annotations: map[string]string{annotationMigrated: from, annotationTaken: string(taken)},
	}
	cluster, found, err := member.Check(ctx, c, join)
	if err != nil {
		return err
	}
	if other := seen[found.ID]; other != "" {
		return fmt.Errorf("it is the same cluster as PediaCluster %s: leave one of them out", other)
	}
	seen[found.ID] = pc.Name
	if known == nil {
		if err := c.Create(ctx, cluster.DeepCopy(), client.DryRunAll); err != nil {
			return fmt.Errorf("as a Cluster: %w", err)
		}
		cluster.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1alpha1.GroupVersion.String(), Kind: "Cluster"}
		report.Object = shownCluster(cluster)
	}
	p.joins, p.report = append(p.joins, join), append(p.report, report)
	return nil
}

// changedSince returns which parts of the access to a cluster differ from those that the last
// migration took, sorted. digests has the present digest of each part. It also returns the Secret
// of the Cluster known. If that Secret does not exist, or the Cluster names none, all parts are
// returned, and an empty Secret.
func changedSince(ctx context.Context, c client.Client, known *clusterv1alpha1.Cluster, digests map[string]string) (changed []string, secret *corev1.Secret, err error) {
	secret = &corev1.Secret{}
	ref := known.Spec.SecretRef
	exists := false
	if ref.Name != "" {
		err = c.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, nil, fmt.Errorf("get Secret %s/%s: %w", ref.Namespace, ref.Name, err)
		}
		exists = err == nil
	}
	before := map[string]string{}
	if exists && json.Unmarshal([]byte(known.Annotations[annotationTaken]), &before) != nil {
		before = nil // an invalid annotation is ignored
	}
	for _, part := range slices.Sorted(maps.Keys(digests)) {
		if before[part] != digests[part] {
			changed = append(changed, part)
		}
	}
	return changed, secret, nil
}

// shownCluster returns a copy of a Cluster for the report, in which passwords in addresses are
// hidden.
func shownCluster(c *clusterv1alpha1.Cluster) *clusterv1alpha1.Cluster {
	c = c.DeepCopy()
	for _, address := range []*string{&c.Spec.APIEndpoint, &c.Spec.ProxyURL} {
		*address = member.Redacted(*address)
	}
	return c
}

// do writes the planned objects to the hub. The MirrorPolicies are first, so that no cluster is
// mirrored without them. After an error the objects before it are written, and the same command
// continues.
func (m *migration) do(ctx context.Context, c client.Client, p *planned) error {
	for _, policy := range p.policies {
		if err := c.Create(ctx, policy.DeepCopy()); err != nil {
			return fmt.Errorf("create MirrorPolicy %s: %w; run this again to go on", policy.Name, err)
		}
	}
	for _, join := range p.joins {
		joined, err := member.Join(ctx, c, join)
		if err != nil {
			return fmt.Errorf("join cluster %s: %w; run this again to go on", join.Name, err)
		}
		if !joined.Refreshed {
			continue
		}
		// An existing Cluster keeps its annotations. If the run is interrupted before this
		// patch, the next run takes the same parts over again.
		cluster := &clusterv1alpha1.Cluster{}
		if err := c.Get(ctx, client.ObjectKey{Name: join.Name}, cluster); err != nil {
			return fmt.Errorf("get Cluster %s: %w; run this again to go on", join.Name, err)
		}
		before := cluster.DeepCopy()
		metav1.SetMetaDataAnnotation(&cluster.ObjectMeta, annotationTaken, join.Annotations[annotationTaken])
		if err := c.Patch(ctx, cluster, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("annotate Cluster %s: %w; run this again to go on", join.Name, err)
		}
	}
	return nil
}

// printMigrated prints the report of a migration: the action for each object of Clusterpedia, then
// what was taken over and the notes. If dryRun is true, it adds that nothing was written.
func printMigrated(w io.Writer, report []migrated, dryRun bool) error {
	if len(report) == 0 {
		return say(w, "There is nothing to take over.\n")
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprint(t, "FROM\tACTION\tTO\n") //nolint:errcheck // Flush returns the error
	for _, r := range report {
		_ = say(t, "%s\t%s\t%s\n", r.From, r.Action, r.To) // Flush returns the error
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range report {
		if len(r.Taken)+len(r.Notes) == 0 {
			continue
		}
		if err := say(w, "\n%s\n", r.From); err != nil {
			return err
		}
		for _, text := range r.Taken {
			if err := say(w, "  taken over: %s\n", text); err != nil {
				return err
			}
		}
		for _, text := range r.Notes {
			if err := say(w, "  note: %s\n", text); err != nil {
				return err
			}
		}
	}
	if dryRun {
		return say(w, "\nNothing was written.\n")
	}
	return say(w, "\n\"orrery cluster list\" says when the clusters are ready.\n")
}

package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/polymorphichelpers"
	"k8s.io/kubectl/pkg/scheme"
)

// logging has the flags of "orrery logs". A field that ends with Said reports whether the user has
// set that flag.
type logging struct {
	reaching

	selector, container                         string
	allContainers, follow, previous, timestamps bool
	prefix, prefixSaid                          bool
	since                                       time.Duration
	sinceTime                                   string
	sinceSaid                                   bool
	tail, limitBytes                            int64
	tailSaid                                    bool
	most                                        int
}

const (
	tailOfSelector = 10  // default of --tail with --selector, as in kubectl
	mostLogs       = 100 // default of --max-log-requests
)

func newLogs(s streams) *cobra.Command {
	l := &logging{reaching: reaching{streams: s}}
	cmd := &cobra.Command{
		Use:   "logs POD | TYPE/NAME | -l SELECTOR",
		Short: "Print the logs of pods in every cluster",
		Long: `Print the logs of a pod, or of all pods of a workload, in every cluster that has it, merged:
by time, or with --follow as they come. Lines are told apart by [CLUSTER/POD], or
[CLUSTER/POD/CONTAINER] with --all-containers, unless all are of one container.

The clusters are found in the mirror and asked themselves, as you there. One that does not
answer is told on standard error, and the exit code is 1; the others are printed.`,
		Example: `  orrery logs deploy/web -n shop
  orrery logs deploy/web -n shop -C 'eu-*' -f --since 10m
  orrery logs -l app=web --all-containers --tail 100 --timestamps`,
		ValidArgsFunction: l.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			l.prefixSaid, l.tailSaid, l.sinceSaid = cmd.Flags().Changed("prefix"), cmd.Flags().Changed("tail"), cmd.Flags().Changed("since")
			return asKubectl(l.run(cmd.Context(), args))
		},
	}
	l.add(cmd, "only in this cluster, or in clusters whose names match a pattern; can be repeated (default: all that have it)")
	flags := cmd.Flags()
	flags.StringVarP(&l.selector, "selector", "l", "", "of pods with these labels, instead of a name")
	flags.StringVarP(&l.container, "container", "c", "", "of this container (default: the one that the pod's annotation kubectl.kubernetes.io/default-container names, or its first)")
	flags.BoolVar(&l.allContainers, "all-containers", false, "of all containers")
	flags.BoolVarP(&l.follow, "follow", "f", false, "go on with what is logged from now on")
	flags.BoolVarP(&l.previous, "previous", "p", false, "of the containers before their last restart")
	flags.BoolVar(&l.timestamps, "timestamps", false, "begin each line with its time")
	flags.BoolVar(&l.prefix, "prefix", false, "begin each line with its cluster and pod (default: if there are several)")
	flags.DurationVar(&l.since, "since", 0, "only what is newer, as in 5s, 2m, 3h (default: all)")
	flags.StringVar(&l.sinceTime, "since-time", "", "only what was logged after this time, as in 2026-11-20T10:00:00Z (default: all)")
	flags.Int64Var(&l.tail, "tail", -1, fmt.Sprintf("only the last lines of each container; -1: all (default: all, with --selector %d)", tailOfSelector))
	flags.Int64Var(&l.limitBytes, "limit-bytes", 0, "at most so many bytes of each container, with the times of its lines (default: all)")
	flags.IntVar(&l.most, "max-log-requests", mostLogs, "how many containers are read at once at most: of more, nothing is")
	return cmd
}

// options returns the options of the request for the log of each container, from the flags. Invalid
// flags are a usageError. Without --follow the options request the time of each line, because
// byTime sorts by it.
func (l *logging) options() (*corev1.PodLogOptions, error) {
	o := &corev1.PodLogOptions{Container: l.container, Follow: l.follow, Previous: l.previous, Timestamps: l.timestamps || !l.follow}
	if l.sinceSaid && l.sinceTime != "" {
		return nil, usageError{errors.New("--since and --since-time: cannot be used together")}
	}
	if l.sinceSaid {
		if l.since <= 0 {
			return nil, usageError{fmt.Errorf("--since %s: must be more than nothing", l.since)}
		}
		o.SinceSeconds = new(int64((l.since + time.Second - 1) / time.Second))
	}
	if l.sinceTime != "" {
		at, err := time.Parse(time.RFC3339, l.sinceTime)
		if err != nil {
			return nil, usageError{fmt.Errorf("--since-time %q: want a time such as 2026-11-20T10:00:00Z", l.sinceTime)}
		}
		o.SinceTime = &metav1.Time{Time: at}
	}
	switch {
	case l.tail < -1:
		return nil, usageError{fmt.Errorf("--tail %d: want a number of lines, or -1 for all", l.tail)}
	case l.tailSaid && l.tail >= 0:
		o.TailLines = new(l.tail)
	case !l.tailSaid && l.selector != "":
		o.TailLines = new(int64(tailOfSelector))
	}
	if l.limitBytes < 0 {
		return nil, usageError{fmt.Errorf("--limit-bytes %d: must not be negative", l.limitBytes)}
	}
	if l.limitBytes > 0 {
		o.LimitBytes = new(l.limitBytes)
	}
	return o, nil
}

func (l *logging) run(ctx context.Context, args []string) error {
	what := strings.Join(args, "/")
	switch {
	case l.selector != "" && len(args) > 0:
		return usageError{errors.New("--selector: it is instead of a name")}
	case l.selector == "" && (len(args) == 0 || len(args) > 2 || strings.Count(what, "/") > 1):
		return usageError{errors.New("want a pod, or TYPE/NAME as in deploy/web, or --selector")}
	case l.container != "" && l.allContainers:
		return usageError{errors.New("--container and --all-containers: cannot be used together")}
	case l.most < 1:
		return usageError{fmt.Errorf("--max-log-requests %d: want at least 1", l.most)}
	}
	options, err := l.options()
	if err != nil {
		return err
	}
	if err := checkSelector(l.selector); err != nil {
		return err
	}
	h, err := l.hub.api(ctx, l.err)
	if err != nil {
		return err
	}
	clusters, err := l.having(ctx, h, what, l.selector)
	if err != nil {
		return err
	}
	problems := &failures{to: l.err}
	logs, err := l.gather(ctx, h, clusters, what, options, problems)
	if err != nil {
		return err
	}
	switch {
	case len(logs) == 0 && problems.count == 0 && l.selector != "":
		return say(l.err, "No pods found in %s namespace.\n", l.usual(h))
	case len(logs) == 0 && problems.count == 0:
		return fmt.Errorf("%s has no pods in %s", what, some(clusters))
	case len(logs) > l.most:
		return fmt.Errorf("these are %d containers, and --max-log-requests is %d: raise it, or name clusters with --cluster", len(logs), l.most)
	}
	if !l.prefixSaid {
		l.prefix = len(logs) > 1
	}
	all := len(logs) + problems.count
	if l.follow {
		l.asTheyCome(ctx, logs, problems)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	} else if err := l.byTime(ctx, logs, problems); err != nil {
		return err
	}
	return problems.err(all, "logs")
}

// having returns the clusters for a command on the object what, POD or TYPE/NAME, or on the pods
// that selector selects if it is not "". If --cluster names clusters without a pattern, it returns
// these without a check. Otherwise it returns those in which the fleet has the object. If there are
// none, the error is NotFound; with a selector there is no error.
func (r *reaching) having(ctx context.Context, h *hubAPI, what, selector string) ([]string, error) {
	patterns := slices.ContainsFunc(r.clusters, isPattern)
	if len(r.clusters) > 0 && !patterns {
		return r.chosen(ctx, h)
	}
	kind, name, ok := strings.Cut(what, "/")
	if !ok {
		kind, name = "pods", what
	}
	clusters, m, err := r.find(ctx, h, kind, url.Values{"names": {name}, "labelSelector": {selector}})
	if err != nil {
		return nil, fmt.Errorf("find the clusters that have it: %w; name one with --cluster to ask it without the fleet", err)
	}
	if len(clusters) == 0 && selector == "" {
		return nil, nowhere(m.Resource.GroupResource(), name, r.clusters)
	}
	return clusters, nil
}

// several returns the error that what is in several clusters, for a command that works on one. It
// asks the user to name one with --cluster.
func (r *reaching) several(what string, clusters []string) error {
	// Clusters that --cluster names were not checked for the object.
	if len(r.clusters) > 0 && !slices.ContainsFunc(r.clusters, isPattern) {
		return fmt.Errorf("%d clusters are named, %s: name one with --cluster (-C)", len(clusters), some(clusters))
	}
	return fmt.Errorf("%s is in %d clusters, %s: name one with --cluster (-C)", what, len(clusters), some(clusters))
}

// nowhere returns the NotFound error that no cluster has the object. clusters has the names and
// patterns from --cluster; empty: all clusters were searched.
func nowhere(of schema.GroupResource, name string, clusters []string) error {
	in := "any cluster"
	if len(clusters) > 0 {
		in += " like " + strings.Join(clusters, ",")
	}
	return fmt.Errorf("%w in %s that you see; name a cluster with --cluster to ask it without the fleet", apierrors.NewNotFound(of, name), in)
}

// containerLog is the log of one container of a pod in a cluster, and the request that reads it.
type containerLog struct {
	cluster, pod, container string

	request rest.ResponseWrapper
}

// gather requests the pods that what or --selector names from all clusters in parallel. It returns
// the logs of their containers, which are not read yet, sorted by cluster, pod and container.
// Errors of single clusters and pods are added to problems. The returned error means that ctx has
// ended or a client could not be created.
func (l *logging) gather(ctx context.Context, h *hubAPI, clusters []string, what string, options *corev1.PodLogOptions, problems *failures) ([]containerLog, error) {
	type found struct {
		logs []containerLog
		errs []error
	}
	each := make([]found, len(clusters))
	var wg sync.WaitGroup
	for i, cluster := range clusters {
		at, err := h.member(cluster, l.namespace)
		if err != nil {
			return nil, err
		}
		at.config.Wrap(neutralAnswers)
		wg.Go(func() { each[i].logs, each[i].errs = l.in(ctx, at, cluster, what, options) })
	}
	wg.Wait()
	var all []containerLog
	for i, cluster := range clusters {
		for _, err := range each[i].errs {
			problems.add(ctx, "cluster "+cluster, err)
		}
		all = append(all, each[i].logs...)
	}
	slices.SortStableFunc(all, func(a, b containerLog) int {
		return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.pod, b.pod))
	})
	return all, ctx.Err()
}

// in returns the logs of the containers in one cluster, of the API at, sorted by container, and
// does not read them. errs has the errors of single pods; the logs of the other pods are returned
// nevertheless.
func (l *logging) in(ctx context.Context, at *below, cluster, what string, options *corev1.PodLogOptions) (logs []containerLog, errs []error) {
	pods, err := l.pods(ctx, at, what)
	if err != nil {
		return nil, []error{err}
	}
	for i := range pods {
		requests, err := polymorphichelpers.AllPodLogsForObjectFn(at, &pods[i], options, 0, l.allContainers)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for ref, request := range requests {
			_, container, _ := strings.Cut(strings.TrimSuffix(ref.FieldPath, "}"), "{") // spec.containers{NAME}
			logs = append(logs, containerLog{cluster: cluster, pod: pods[i].Name, container: container, request: request})
		}
	}
	slices.SortFunc(logs, func(a, b containerLog) int { return cmp.Compare(a.container, b.container) })
	return logs, errs
}

// pods returns the pods of one cluster, of the API at: the pod what, the pods of the workload what,
// or those that --selector selects. A workload and a selector may have none. If the object what
// does not exist, the error is NotFound.
func (l *logging) pods(ctx context.Context, at *below, what string) ([]corev1.Pod, error) {
	c, err := kubernetes.NewForConfig(at.config)
	if err != nil {
		return nil, err
	}
	namespace, selector := at.namespace, l.selector
	if selector == "" {
		var object runtime.Object
		object, err = cmdutil.NewFactory(at).NewBuilder().WithScheme(scheme.Scheme, scheme.Scheme.PrioritizedVersionsAllGroups()...).
			NamespaceParam(namespace).DefaultNamespace().ResourceNames("pods", what).Do().Object()
		if err != nil {
			return nil, err
		}
		if pod, ok := object.(*corev1.Pod); ok {
			return []corev1.Pod{*pod}, nil
		}
		in, of, err := polymorphichelpers.SelectorsForObject(object)
		if err != nil {
			return nil, fmt.Errorf("%s has no logs: %w", what, err)
		}
		namespace, selector = in, of.String()
	}
	list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// label returns the prefix of the log's lines, with a space at its end: [CLUSTER/POD] or, if
// containers is true, [CLUSTER/POD/CONTAINER]. Control characters are replaced.
func (c *containerLog) label(containers bool) string {
	if containers {
		return cell("[" + c.cluster + "/" + c.pod + "/" + c.container + "] ")
	}
	return cell("[" + c.cluster + "/" + c.pod + "] ")
}

// String returns the container, pod and cluster, for the messages of errors.
func (c *containerLog) String() string {
	return fmt.Sprintf("container %s of pod %s in cluster %s", c.container, c.pod, c.cluster)
}

// asTheyCome prints the lines of all logs in the order in which they arrive, for --follow. It
// returns when all logs have ended or ctx ends. Each line is printed as a whole. An error of one
// log, or of the output, is added to problems and does not stop the other logs.
func (l *logging) asTheyCome(ctx context.Context, logs []containerLog, problems *failures) {
	var wg sync.WaitGroup
	var one sync.Mutex
	for i := range logs {
		wg.Go(func() {
			err := l.each(ctx, &logs[i], func(line []byte) error {
				one.Lock()
				defer one.Unlock()
				return l.line(&logs[i], line)
			})
			one.Lock()
			defer one.Unlock()
			problems.add(ctx, logs[i].String(), err)
		})
	}
	wg.Wait()
}

// line prints one line of the log of. It adds the prefix if there is one, and a line break if the
// line has none. The bytes of the line stay unchanged.
func (l *logging) line(of *containerLog, line []byte) error {
	var out bytes.Buffer
	if l.prefix {
		out.WriteString(of.label(l.allContainers))
	}
	out.Write(line)
	if !bytes.HasSuffix(line, []byte("\n")) { // the last line of a container
		out.WriteByte('\n')
	}
	_, err := raw(l.out).Write(out.Bytes()) // the bytes of the program, unchanged
	return err
}

// each reads the log of to its end, and calls take with every line and its line break; the last
// line may lack that. An error of take ends the reading and is returned.
func (*logging) each(ctx context.Context, of *containerLog, take func(line []byte) error) error {
	stream, err := of.request.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was read
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if err := take(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// timedLine is a line of a log with the time at which it was written. If the line has no time, it
// is the time of the line before.
type timedLine struct {
	at   time.Time
	line []byte // without the time, unless --timestamps is set
}

// byTime prints the lines of all logs sorted by their times. It reads each log only as far as
// necessary to compare. An error of one log is added to problems and does not stop the others. The
// returned error is that of the output, or of ctx if it has ended.
func (l *logging) byTime(ctx context.Context, logs []containerLog, problems *failures) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var problemsMu sync.Mutex
	next := make([]chan timedLine, len(logs))
	for i := range logs {
		next[i] = make(chan timedLine, 1)
		go func() {
			defer close(next[i])
			var last time.Time
			err := l.each(ctx, &logs[i], func(line []byte) error {
				t := timedLine{at: last, line: line}
				if stamp, rest, ok := bytes.Cut(line, []byte(" ")); ok {
					if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil {
						last, t.at = at, at
						if !l.timestamps {
							t.line = rest
						}
					}
				}
				select {
				case next[i] <- t:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			problemsMu.Lock()
			defer problemsMu.Unlock()
			problems.add(ctx, logs[i].String(), err)
		}()
	}
	heads := make([]*timedLine, len(logs))
	for i := range next {
		heads[i] = receive(next[i])
	}
	for {
		first := -1
		for i, head := range heads {
			if head != nil && (first < 0 || head.at.Before(heads[first].at)) {
				first = i
			}
		}
		if first < 0 {
			return ctx.Err()
		}
		if err := l.line(&logs[first], heads[first].line); err != nil {
			return err
		}
		heads[first] = receive(next[first])
	}
}

// receive waits for the next line of a log. It is nil after the last line, when the channel is
// closed.
func receive(from <-chan timedLine) *timedLine {
	if t, ok := <-from; ok {
		return &t
	}
	return nil
}

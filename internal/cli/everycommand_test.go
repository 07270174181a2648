package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	fleetv1alpha1 "orrery.dev/orrery/api/fleet/v1alpha1"
)

// commandCase describes one command for the tests of all commands.
type commandCase struct {
	// asks has arguments with which the command sends a request to the hub; nil: it sends none.
	// The kubeconfig is in the environment, and replaces the argument KUBECONFIG.
	asks []string
	// typos has arguments with the cluster okk, which has never joined.
	typos [][]string
	// wrong has invalid arguments, beside those that every command has.
	wrong [][]string
}

var (
	anything = [][]string{{"bogus"}}
	noName   = [][]string{{}}
)

// everyCommand has every command that can be run. A missing command fails the tests below.
var everyCommand = map[string]commandCase{
	"":                       {wrong: anything},
	"agent-image":            {wrong: [][]string{{}, {"--image", "web", "--output", "f"}}},
	"api-resources":          {asks: []string{}, wrong: anything},
	"attach":                 {asks: []string{"web", "-C", "oak"}, typos: [][]string{{"web", "-C", "okk"}, {"deploy/web", "-C", "okk"}}, wrong: [][]string{{}, {"a", "b"}}},
	"cluster":                {wrong: anything},
	"cluster add-node":       {wrong: [][]string{{}, {"bogus"}, {"-f", "oak.yaml", "--attempts", "0"}}},
	"cluster apply":          {wrong: [][]string{{}, {"bogus"}, {"-f", "oak.yaml", "--max-unavailable", "0"}}},
	"cluster certs":          {wrong: anything},
	"cluster certs list":     {wrong: noName},
	"cluster certs renew":    {wrong: noName},
	"cluster config":         {wrong: noName},
	"cluster create":         {asks: []string{"-f", "oak.yaml", "--yes", "--join"}, wrong: [][]string{{}, {"bogus"}, {"-f", "oak.yaml", "--deadline", "-1s"}}},
	"cluster delete":         {wrong: noName},
	"cluster delete-node":    {wrong: [][]string{{}, {"oak"}}},
	"cluster describe":       {asks: []string{"oak"}, typos: [][]string{{"okk"}}, wrong: noName},
	"cluster join":           {asks: []string{"oak", "--pull", "--agent-process"}, wrong: [][]string{{}, {"oak"}, {"oak", "--pull"}}},
	"cluster kubeconfig":     {wrong: noName},
	"cluster list":           {asks: []string{}, wrong: anything},
	"cluster orphans":        {asks: []string{}, typos: [][]string{{"okk"}}, wrong: [][]string{{"a", "b"}}},
	"cluster plan":           {wrong: anything},
	"cluster preflight":      {wrong: anything},
	"cluster rejoin":         {asks: []string{"oak", "--agent-process"}, typos: [][]string{{"okk", "--agent-process"}}, wrong: [][]string{{"--agent-process"}, {"oak"}}},
	"cluster rollback":       {wrong: noName},
	"cluster unjoin":         {asks: []string{"oak"}, typos: [][]string{{"okk"}}, wrong: [][]string{{}, {"a", "b"}}},
	"completion":             {},
	"completion bash":        {wrong: anything},
	"completion fish":        {wrong: anything},
	"completion powershell":  {wrong: anything},
	"completion zsh":         {wrong: anything},
	"console":                {asks: []string{"--print"}, wrong: anything},
	"cordon":                 {asks: []string{"oak"}, typos: [][]string{{"okk"}}, wrong: [][]string{{}, {"-l", "a b"}, {"oak", "--dry-run=maybe"}}},
	"demo":                   {wrong: anything},
	"demo down":              {wrong: anything},
	"demo status":            {wrong: anything},
	"demo up":                {wrong: [][]string{{"bogus"}, {"--clusters", "0"}}},
	"describe":               {asks: []string{"deploy/web"}, typos: [][]string{{"deploy/web", "-C", "okk"}, {"pods", "-C", "okk"}}, wrong: [][]string{{}, {"pods", "-l", "a b"}, {"pod", "web", "-l", "a=b"}}},
	"diff":                   {asks: []string{"--since", "1h"}, typos: [][]string{{"--since", "1h", "-C", "okk"}, {"--since", "1h", "-C", "okk", "pods"}}, wrong: [][]string{{}, {"--since", "5x"}, {"--since", "2999-01-01"}}},
	"exec":                   {asks: []string{"web", "-C", "oak", "--", "date"}, typos: [][]string{{"web", "-C", "okk", "--", "date"}, {"deploy/web", "-C", "okk", "--", "date"}}, wrong: [][]string{{}, {"web"}}},
	"failover":               {wrong: anything},
	"failover pause":         {asks: []string{}, wrong: anything},
	"failover resume":        {asks: []string{"--reason", "it is over"}, wrong: anything},
	"failover status":        {asks: []string{}, wrong: anything},
	"get":                    {asks: []string{"pods"}, typos: [][]string{{"pods", "-C", "okk"}, {"pods", "web", "-C", "okk"}, {"pods", "-C", "oak,okk"}, {"pods", "-C", "okk", "--live"}, {"pods", "-C", "okk", "-w"}}, wrong: [][]string{{}, {"pods", "--live"}, {"pods", "-o", "jsonpath={"}, {"pods", "-o", "custom-columns=a"}, {"pods", "--sort-by", "{.a["}, {"pods", "-l", "a b"}, {"pods", "--output-watch-events"}, {"deploy/web", "web"}}},
	"graph":                  {asks: []string{"secret/db"}, typos: [][]string{{"secret/db", "-C", "okk"}}, wrong: [][]string{{}, {"web"}, {"secret/a", "--uses", "--used-by"}}},
	"help":                   {},
	"history":                {asks: []string{"deploy/web"}, typos: [][]string{{"deploy/web", "-C", "okk"}, {"--deleted", "-C", "okk"}}, wrong: [][]string{{}, {"web"}, {"deploy/web", "--limit", "-1"}, {"--deleted", "--diff"}}},
	"kubectl":                {},
	"logs":                   {asks: []string{"deploy/web"}, typos: [][]string{{"deploy/web", "-C", "okk"}, {"web", "-C", "okk"}, {"-l", "app=web", "-C", "okk"}}, wrong: [][]string{{}, {"web", "--since", "5x"}, {"web", "--since", "-5s"}, {"web", "--since-time", "noon"}, {"-l", "a b"}, {"web", "--tail", "-2"}}},
	"migrate":                {wrong: anything},
	"migrate clusterpedia":   {asks: []string{"--kubeconfig", "KUBECONFIG"}, wrong: noName},
	"operation":              {wrong: anything},
	"operation cancel":       {wrong: noName},
	"operation list":         {wrong: [][]string{{"a", "b"}, {"No Name"}}},
	"operation pause":        {wrong: noName},
	"operation resume":       {wrong: noName},
	"operation show":         {wrong: [][]string{{}, {"oak"}}},
	"promote":                {asks: []string{"deploy/web", "-C", "oak"}, typos: [][]string{{"deploy/web", "-C", "okk"}}, wrong: [][]string{{}, {"web"}}},
	"rebalance":              {asks: []string{"deploy/web"}, wrong: [][]string{{}, {"deploy"}}},
	"rerun":                  {asks: []string{"job/web"}, wrong: [][]string{{}, {"job"}}},
	"search":                 {asks: []string{"app"}, typos: [][]string{{"cluster:okk"}, {"kind:Pod cluster:okk"}}, wrong: [][]string{{"kind:Pod", "-phase:Running"}, {"uses:secret"}, {"--limit", "-1"}, {"--filter", "object.", "app"}, {"--group", "colour"}}},
	"server":                 {wrong: [][]string{{"bogus"}, {"--log-format", "xml"}}},
	"server confirm-restore": {asks: []string{}, wrong: anything},
	"server rotate-key":      {wrong: anything},
	"taint":                  {asks: []string{"cluster", "oak", "a=b:NoSchedule"}, typos: [][]string{{"cluster", "okk", "a=b:NoSchedule"}}, wrong: [][]string{{}, {"oak", "a=b:NoSchedule"}, {"cluster", "oak", "a=b"}, {"cluster", "a:NoSchedule", "-l", "a b"}}},
	"top":                    {wrong: anything},
	"top nodes":              {asks: []string{}, typos: [][]string{{"-C", "okk"}, {"-C", "oak,okk"}}, wrong: [][]string{{"a", "b"}, {"--sort-by", "name"}, {"-l", "a b"}, {"n1", "-l", "a=b"}}},
	"top pods":               {asks: []string{"-A"}, typos: [][]string{{"-C", "okk"}}, wrong: [][]string{{"a", "b"}, {"--sort-by", "name"}, {"-l", "a b"}}},
	"uncordon":               {asks: []string{"oak"}, typos: [][]string{{"okk"}}, wrong: noName},
	"version":                {wrong: [][]string{{"bogus"}, {"-o", "xml"}}},
	"why":                    {asks: []string{"deploy/web"}, wrong: [][]string{{}, {"deploy"}}},
}

// commandPath returns the path of a command without the name of the program.
func commandPath(c *cobra.Command) string {
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	return path
}

// runnable returns all commands that can be run, also those that cobra adds.
func runnable() map[string]*cobra.Command {
	root := newRoot(streams{})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	all := map[string]*cobra.Command{}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Runnable() || c == root || c.HasSubCommands() {
			all[commandPath(c)] = c
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	return all
}

// TestEveryCommandIsTested: each command has a case, and each command that takes a cluster has
// arguments with a mistyped one.
func TestEveryCommandIsTested(t *testing.T) {
	all := runnable()
	for path := range everyCommand {
		if all[path] == nil {
			t.Errorf("there is no command %q", path)
		}
	}
	for path, command := range all {
		c, ok := everyCommand[path]
		if !ok {
			t.Errorf("command %q is not in everyCommand", path)
		}
		if command.Flags().Lookup("cluster") != nil && c.typos == nil {
			t.Errorf("command %q takes a cluster, and has no typos", path)
		}
		if command.Flags().Lookup("kubeconfig") != nil && command.RunE != nil && !command.HasSubCommands() && c.asks == nil && command.InheritedFlags().Lookup("kubeconfig") == nil {
			t.Errorf("command %q takes a kubeconfig, and has no line that asks the hub", path)
		}
	}
}

// alone makes a test run commands with the kubeconfig of a hub at a URL, and without any other
// configuration of this machine.
func alone(t *testing.T, hub string) (kubeconfig string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "hub", Contexts: map[string]*clientcmdapi.Context{"hub": {Cluster: "hub", AuthInfo: "me", Namespace: "team-a"}},
		Clusters: map[string]*clientcmdapi.Cluster{"hub": {Server: hub}}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {Token: "t"}},
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	oak := `{apiVersion: cluster.orrery.dev/v1alpha1, kind: Cluster, metadata: {name: oak}, spec: {provision: {
		hosts: [{name: oak-1, address: 127.0.0.1, internalAddress: 10.0.0.1, port: 1, password: hunter2}],
		roleGroups: {control-plane: [oak-1], worker: [oak-1]}, kubernetes: {version: v1.36.3}, network: {plugin: none}}}}`
	if err := os.WriteFile(filepath.Join(dir, "oak.yaml"), []byte(oak), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv("HOME", dir)
	t.Setenv("XDG_DATA_HOME", filepath.Join(dir, "data"))
	t.Setenv("KUBECONFIG", kubeconfig)
	return kubeconfig
}

// line returns a command line for Main.
func line(path, kubeconfig string, args []string) []string {
	out := strings.Fields(path)
	for _, arg := range args {
		if arg == "KUBECONFIG" {
			arg = kubeconfig
		}
		out = append(out, arg)
	}
	return out
}

// TestWrongCommandLines: an invalid command line ends with exit code 2, without a request to
// the hub.
func TestWrongCommandLines(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	kubeconfig := alone(t, server.URL)
	for path, command := range runnable() {
		if command.DisableFlagParsing {
			continue // another program parses its arguments
		}
		c := everyCommand[path]
		lines := append([][]string{{"--nope"}}, c.wrong...)
		command.Flags().VisitAll(func(f *pflag.Flag) {
			if slices.Contains([]string{"bool", "int", "int32", "int64", "uint16", "uint32", "duration", "stringToString"}, f.Value.Type()) {
				lines = append(lines, []string{"--" + f.Name + "=%"})
			}
		})
		if command.Flags().Lookup("output") != nil && c.asks != nil {
			flag := []string{"-o", "jsn"}
			if i := slices.Index(c.asks, "--"); i >= 0 {
				lines = append(lines, slices.Concat(c.asks[:i], flag, c.asks[i:]))
			} else {
				lines = append(lines, slices.Concat(c.asks, flag))
			}
		}
		for _, args := range lines {
			var out, errOut bytes.Buffer
			asked.Store(0)
			args = line(path, kubeconfig, args)
			code := Main(args, strings.NewReader(""), &out, &errOut)
			if code != 2 || out.Len() > 0 || !strings.HasPrefix(errOut.String(), "error: ") || asked.Load() > 0 {
				t.Errorf("%q: code %d, %d requests, %q, %q", args, code, asked.Load(), out.String(), errOut.String())
			}
		}
	}
	var errOut bytes.Buffer
	Main([]string{"search", "kind:Pod", "-phase:Running"}, strings.NewReader(""), io.Discard, &errOut)
	if want := "quote the query, as in 'kind:Pod -phase:Running', or put -- before it"; !strings.Contains(errOut.String(), want) {
		t.Errorf("a term that looks like flags: %q, want %q", errOut.String(), want)
	}
}

// tenants is the API server of a hub that forbids every request, except discovery if that is set.
type tenants struct {
	discovery bool // discovery is allowed, except for that of members
}

const tenant = "system:serviceaccount:team-a:dev"

func (h tenants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	said := " of the hub, whose roles say what of the fleet may be seen"
	rest, inFleet := strings.CutPrefix(path, fleetv1alpha1.FleetPath)
	if rest, one := strings.CutPrefix(rest, "/clusters/"); one {
		_, inside, _ := strings.Cut(rest, "/")
		path = "/" + inside
	} else if inFleet {
		path = rest
	} else {
		said = ""
	}
	if h.discovery && h.serves(w, path) {
		return
	}
	asked := r.Clone(r.Context())
	asked.URL.Path = path
	info, err := (&apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}).NewRequestInfo(asked)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	message := fmt.Sprintf("forbidden: User %q cannot get path %q", tenant, path)
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden}
	if info.IsResourceRequest {
		resource := strings.TrimSuffix(info.Resource+"/"+info.Subresource, "/")
		where := "at the cluster scope"
		if info.Namespace != "" {
			where = fmt.Sprintf("in the namespace %q", info.Namespace)
		}
		gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
		message = fmt.Sprintf("%s is forbidden: User %q cannot %s resource %q in API group %q %s%s", gr, tenant, info.Verb, resource, info.APIGroup, where, said)
		status.Details = &metav1.StatusDetails{Group: info.APIGroup, Kind: info.Resource, Name: info.Name}
	}
	status.Message = message
	reply(w, http.StatusForbidden, status)
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // a client may have gone
}

// discovered has the types that discovery returns to tenants, by group and version: plural and
// kind.
var discovered = map[string]map[string]string{
	"v1":                          {"pods": "Pod", "nodes": "Node", "secrets": "Secret", "namespaces": "Namespace", "configmaps": "ConfigMap"},
	"apps/v1":                     {"deployments": "Deployment"},
	"batch/v1":                    {"jobs": "Job"},
	"cluster.orrery.dev/v1alpha1": {"clusters": "Cluster"},
	"work.orrery.dev/v1alpha2":    {"resourcebindings": "ResourceBinding", "clusterresourcebindings": "ClusterResourceBinding"},
	"policy.orrery.dev/v1alpha1":  {"propagationpolicies": "PropagationPolicy"},
	"apps.orrery.dev/v1alpha1":    {"workloadrebalancers": "WorkloadRebalancer"},
}

// serves answers requests for discovery.
func (tenants) serves(w http.ResponseWriter, path string) bool {
	switch path {
	case "/api":
		reply(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}})
		return true
	case "/apis":
		groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, name := range slices.Sorted(maps.Keys(discovered)) {
			if group, version, ok := strings.Cut(name, "/"); ok {
				version := metav1.GroupVersionForDiscovery{GroupVersion: name, Version: version}
				groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
			}
		}
		reply(w, http.StatusOK, groups)
		return true
	}
	name := strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")
	types, ok := discovered[name]
	if !ok {
		return false
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: name}
	for _, plural := range slices.Sorted(maps.Keys(types)) {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: plural, SingularName: strings.ToLower(types[plural]), Kind: types[plural], ShortNames: map[string][]string{"deployments": {"deploy"}}[plural],
			Namespaced: !slices.Contains([]string{"nodes", "namespaces", "clusters", "clusterresourcebindings", "workloadrebalancers"}, plural),
			Verbs:      metav1.Verbs{"get", "list", "watch", "create"},
		})
	}
	reply(w, http.StatusOK, list)
	return true
}

// saysNone matches the messages of commands for an empty result.
var saysNone = regexp.MustCompile(`(?i)\bno (resources|operations|orphans|pods|object)\b|\bnothing (was|changed|is|found|to)\b|\bnone\b`)

// TestForbiddenIsNotNone: a command whose request is forbidden names the missing right once,
// and ends with exit code 1. It never prints a message for an empty result.
func TestForbiddenIsNotNone(t *testing.T) {
	for name, hub := range map[string]tenants{"Everything": {}, "AllButDiscovery": {discovery: true}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(hub)
			defer server.Close()
			kubeconfig := alone(t, server.URL)
			for path, c := range everyCommand {
				if c.asks == nil {
					continue
				}
				var out, errOut bytes.Buffer
				args := line(path, kubeconfig, c.asks)
				code := Main(args, strings.NewReader(""), &out, &errOut)
				printed := errOut.String()
				if code != 1 || saysNone.MatchString(out.String()+printed) || strings.Count(printed, "you may not ") != 1 || !strings.Contains(printed, `as user "`+tenant+`"`) ||
					strings.Contains(printed, `"http`) || strings.Count(printed, "\n") > 2 {
					t.Errorf("%q: code %d, %q\n%s", args, code, out.String(), printed)
				}
			}
		})
	}
}

// TestMissingRightIsNamed: the error has the verb, the type, the cluster and the role.
func TestMissingRightIsNamed(t *testing.T) {
	server := httptest.NewServer(tenants{discovery: true})
	defer server.Close()
	alone(t, server.URL)
	const as = `, as user "` + tenant + `"`
	proxied := `you may not get clusters/proxy of cluster oak on the hub` + as + `; its ClusterRole orrery:proxy gives the right`
	for command, want := range map[string]string{
		"cluster list":            "error: list clusters: you may not list clusters.cluster.orrery.dev on the hub" + as + "; its ClusterRole view gives the right\n",
		"cluster unjoin oak":      `error: unjoin cluster oak: get cluster oak: you may not get clusters.cluster.orrery.dev "oak" on the hub` + as + "; its ClusterRole view gives the right\n",
		"get pods":                "Error from server (Forbidden): you may not list pods in namespace team-a on the hub" + as + "\n",
		"exec web -C oak -- date": "Error from server (Forbidden): " + proxied + "\n",
		"failover pause":          `error: read ConfigMap orrery-cluster/failover: you may not get configmaps "failover" in namespace orrery-cluster on the hub` + as + "\n",
		"logs deploy/web -C oak":  "error: cluster oak: Error from server (Forbidden): " + proxied + "\nerror: 1 of 1 logs failed (errors above)\n",
		"promote web/web -C oak":  `error: cluster oak: find type "web": ` + proxied + "\n",
		"console --print":         "error: ask the hub at " + server.URL + " for a link to the console: you may not create consolelinks on the hub" + as + "; its ClusterRole orrery:console gives the right\n",
	} {
		t.Run(command, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := Main(strings.Fields(command), strings.NewReader(""), &out, &errOut)
			if code != 1 || out.Len() > 0 || errOut.String() != want {
				t.Errorf("code %d, %q\n%swant\n%s", code, out.String(), errOut.String(), want)
			}
		})
	}
}

// TestRefusals parses refusals of API servers. Refusals for other reasons than roles are not
// changed.
func TestRefusals(t *testing.T) {
	details := &metav1.StatusDetails{Name: "web"}
	for name, tc := range map[string]struct {
		message, member, want string
	}{
		"Path":      {`forbidden: User "dev" cannot get path "/metrics"`, "", `you may not get path /metrics on the hub, as user "dev"`},
		"Member":    {`pods "web" is forbidden: User "orrery:sa:a:dev" cannot create resource "pods/exec" in API group "" in the namespace "shop"`, "oak", `you may not create pods/exec "web" in namespace shop in cluster oak, where you are user "orrery:sa:a:dev"; a role in that cluster gives the right`},
		"Scale":     {`deployments.apps "web" is forbidden: User "dev" cannot patch resource "deployments/scale" in API group "apps" in the namespace "shop"`, "", `you may not patch deployments.apps/scale "web" in namespace shop on the hub, as user "dev"`},
		"Reason":    {`x is forbidden: User "dev" cannot list resource "pods" in API group "" at the cluster scope: RBAC: role.rbac.authorization.k8s.io "x" not found`, "", `you may not list pods "web" on the hub, as user "dev" (RBAC: role.rbac.authorization.k8s.io "x" not found)`},
		"Quoted":    {`x is forbidden: User "a\"b" cannot list resource "pods" in API group "" at the cluster scope`, "", `you may not list pods "web" on the hub, as user "a\"b"`},
		"Quota":     {`pods "web" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1`, "", ""},
		"Admission": {`deployments.apps "web" is forbidden: ValidatingAdmissionPolicy 'x' denied request: no`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, ok := missingRightOf(metav1.Status{Message: tc.message, Details: details})
			got := ""
			if ok {
				if m.path != "" {
					m.name = ""
				}
				got = m.text(tc.member)
			}
			if got != tc.want {
				t.Errorf("%q\nwant %q", got, tc.want)
			}
		})
	}
}

// TestRolesThatGiveRights compares the roles that errors name with the roles of a hub.
func TestRolesThatGiveRights(t *testing.T) {
	type rule struct {
		APIGroups []string `json:"apiGroups"`
		Resources []string `json:"resources"`
		Verbs     []string `json:"verbs"`
	}
	rules := map[string][]rule{}
	manifest, err := os.ReadFile("../hub/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		var role struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			} `json:"metadata"`
			Rules []rule `json:"rules"`
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" {
			continue
		}
		rules[role.Metadata.Name] = role.Rules
		for _, to := range []string{"view", "edit"} {
			if role.Metadata.Labels["rbac.authorization.k8s.io/aggregate-to-"+to] == "true" {
				rules[to] = append(rules[to], role.Rules...)
			}
		}
	}
	has := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	for _, of := range [][]string{
		{"get", "fleet.orrery.dev", "clusters/proxy"},
		{"create", "fleet.orrery.dev", "clusters/proxy"},
		{"get", "fleet.orrery.dev", "clusters/mirror"},
		{"create", "fleet.orrery.dev", "consolelinks"},
		{"get", "fleet.orrery.dev", "metrics"},
		{"get", "fleet.orrery.dev", "resources/proxy"},
		{"get", "fleet.orrery.dev", "placements"},
		{"get", "fleet.orrery.dev", "works"},
		{"get", "fleet.orrery.dev", "access"},
		{"create", "fleet.orrery.dev", "placementreviews"},
		{"list", "cluster.orrery.dev", "clusters"},
		{"get", "work.orrery.dev", "resourcebindings"},
		{"watch", "lifecycle.orrery.dev", "operations"},
		{"create", "policy.orrery.dev", "propagationpolicies"},
		{"patch", "policy.orrery.dev", "overridepolicies"},
		{"delete", "apps.orrery.dev", "websites"},
	} {
		role := givenBy(of[0], of[1], of[2])
		if !slices.ContainsFunc(rules[role], func(r rule) bool { return has(r.Verbs, of[0]) && has(r.APIGroups, of[1]) && has(r.Resources, of[2]) }) {
			t.Errorf("%q does not give %q", role, of)
		}
	}
	for _, of := range [][]string{{"patch", "cluster.orrery.dev", "clusters"}, {"create", "policy.orrery.dev", "clusterpropagationpolicies"}, {"create", "apps.orrery.dev", "workloadrebalancers"}, {"list", "", "secrets"}} {
		if role := givenBy(of[0], of[1], of[2]); role != "" {
			t.Errorf("%q is said to give %q", role, of)
		}
	}
}

// TestInterrupted: a command that a signal ends during a request to the hub ends with the exit
// code of shells for that signal.
func TestInterrupted(t *testing.T) {
	asked := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		case <-r.Context().Done():
		}
		<-r.Context().Done()
	}))
	defer server.Close()
	kubeconfig := alone(t, server.URL)
	for path, c := range everyCommand {
		if c.asks == nil {
			continue
		}
		for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
			ctx, cancel := context.WithCancelCause(t.Context())
			var errOut bytes.Buffer
			args, ended := line(path, kubeconfig, c.asks), make(chan int, 1)
			go func() {
				ended <- executeIn(ctx, func(*cobra.Command) {}, args, strings.NewReader(""), io.Discard, &errOut)
			}()
			select {
			case <-asked:
			case code := <-ended:
				t.Fatalf("%q ended before the hub answered: %d %s", args, code, errOut.String())
			}
			cancel(interruptedError{signal})
			if code := <-ended; code != want || strings.Contains(errOut.String(), `"http`) {
				t.Errorf("%q: code %d, want %d\n%s", args, code, want, errOut.String())
			}
		}
	}
}

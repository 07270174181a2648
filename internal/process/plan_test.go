package process

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func TestNewRefuses(t *testing.T) {
	command := []string{"true"}
	cases := map[string]struct {
		plan Plan
		want []string // type, field and value of each mistake
	}{
		"DuplicateName": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command}, {Name: "a", Command: command}}},
			want: []string{"FieldValueDuplicate processes[1].name a"},
		},
		"InvalidName": {
			plan: Plan{Processes: []Process{{Name: "../a", Command: command}}},
			want: []string{"FieldValueInvalid processes[0].name ../a"},
		},
		"UnknownDependency": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, After: []string{"b"}}}},
			want: []string{"FieldValueNotFound processes[a].after b"},
		},
		"Cycle": {
			plan: Plan{Processes: []Process{
				{Name: "d", Command: command, After: []string{"a"}},
				{Name: "a", Command: command, After: []string{"b"}},
				{Name: "b", Command: command, After: []string{"c"}},
				{Name: "c", Command: command, After: []string{"a"}},
			}},
			want: []string{"FieldValueInvalid processes[a].after a → b → c → a"},
		},
		"AfterItself": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, After: []string{"a"}}}},
			want: []string{"FieldValueInvalid processes[a].after a → a"},
		},
		"EmptyCommand": {
			plan: Plan{Processes: []Process{{Name: "a"}}},
			want: []string{"FieldValueRequired processes[a].command "},
		},
		"NegativeParallelism": {
			plan: Plan{Parallelism: -1},
			want: []string{"FieldValueInvalid parallelism -1"},
		},
		"DeathSignal": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, DeathSignal: "HUP"}}},
			want: []string{"FieldValueNotSupported processes[a].deathSignal HUP"},
		},
		"KillMode": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, KillMode: "none"}}},
			want: []string{"FieldValueNotSupported processes[a].killMode none"},
		},
		"FileWithoutPath": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, Files: []File{{Content: "x"}}}}},
			want: []string{"FieldValueRequired processes[a].files[0].path "},
		},
		"NoProbe": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, Ready: &Probe{}}}},
			want: []string{"FieldValueInvalid processes[a].ready 0"},
		},
		"TwoProbes": {
			plan: Plan{Processes: []Process{{Name: "a", Command: command, Ready: &Probe{
				TCP: &TCPProbe{Address: "localhost:1"}, File: &FileProbe{Path: "x"},
			}}}},
			want: []string{"FieldValueInvalid processes[a].ready 2"},
		},
		"EveryMistakeAtOnce": {
			plan: Plan{Processes: []Process{
				{Name: "a", Command: command, Ready: &Probe{HTTP: &HTTPProbe{URL: "localhost:80/", CertFile: "c"}}},
				{Name: "b", Command: command, Ready: &Probe{TCP: &TCPProbe{Address: "localhost"}}},
				{Name: "c", Command: command, Ready: &Probe{File: &FileProbe{}}},
				{Name: "d", Command: command, Ready: &Probe{
					Exec: &ExecProbe{}, Timeout: metav1.Duration{Duration: -time.Second},
				}},
			}},
			want: []string{
				"FieldValueInvalid processes[a].ready.http.url localhost:80/",
				"FieldValueInvalid processes[a].ready.http c",
				"FieldValueInvalid processes[b].ready.tcp.address localhost",
				"FieldValueRequired processes[c].ready.file.path ",
				"FieldValueInvalid processes[d].ready.timeout -1s",
				"FieldValueRequired processes[d].ready.exec.command ",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.plan, Options{Dir: t.TempDir()})
			var all utilerrors.Aggregate
			if !errors.As(err, &all) {
				t.Fatalf("New: got %v, want field errors", err)
			}
			got := make([]string, 0, len(all.Errors()))
			for _, err := range all.Errors() {
				mistake := new(field.Error)
				if !errors.As(err, &mistake) {
					t.Fatalf("got %v, want a field error", err)
				}
				got = append(got, fmt.Sprintf("%s %s %v", string(mistake.Type), mistake.Field, mistake.BadValue))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("mistakes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewRequiresDirectory(t *testing.T) {
	if _, err := New(Plan{}, Options{}); err == nil {
		t.Error("New without a directory: got no error")
	}
}

const planYAML = `name: hub
parallelism: 2
processes:
- command:
  - etcd
  - --data-dir=data
  dir: /var/lib/orrery
  env:
    GOGC: "50"
  files:
  - content: |
      a: b
    mode: "0640"
    path: etcd.yaml
  name: etcd
  ready:
    http:
      caFile: ca.crt
      certFile: tls.crt
      keyFile: tls.key
      url: https://localhost:2379/readyz
    timeout: 1m30s
- after:
  - etcd
  command:
  - kube-apiserver
  deathSignal: TERM
  name: kube-apiserver
  ready:
    tcp:
      address: localhost:6443
- command:
  - a
  name: a
  ready:
    file:
      path: a.sock
- command:
  - b
  name: b
  ready:
    exec:
      command:
      - "true"
`

func TestPlanYAML(t *testing.T) {
	want := Plan{
		Name:        "hub",
		Parallelism: 2,
		Processes: []Process{
			{
				Name:    "etcd",
				Command: []string{"etcd", "--data-dir=data"},
				Env:     map[string]string{"GOGC": "50"},
				Dir:     "/var/lib/orrery",
				Files:   []File{{Path: "etcd.yaml", Mode: 0o640, Content: "a: b\n"}},
				Ready: &Probe{
					HTTP: &HTTPProbe{
						URL: "https://localhost:2379/readyz", CAFile: "ca.crt", CertFile: "tls.crt", KeyFile: "tls.key",
					},
					Timeout: metav1.Duration{Duration: 90 * time.Second},
				},
			},
			{
				Name: "kube-apiserver", Command: []string{"kube-apiserver"}, After: []string{"etcd"},
				DeathSignal: DeathSignalTerm, Ready: &Probe{TCP: &TCPProbe{Address: "localhost:6443"}},
			},
			{Name: "a", Command: []string{"a"}, Ready: &Probe{File: &FileProbe{Path: "a.sock"}}},
			{Name: "b", Command: []string{"b"}, Ready: &Probe{Exec: &ExecProbe{Command: []string{"true"}}}},
		},
	}
	written, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(planYAML, string(written)); diff != "" {
		t.Errorf("as YAML (-want +got):\n%s", diff)
	}
	var got Plan
	if err := yaml.UnmarshalStrict(written, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
}

func TestModeRefuses(t *testing.T) {
	for name, text := range map[string]string{"Letters": "rw", "NotOctal": "0900", "MoreThanPermissions": "04755"} {
		t.Run(name, func(t *testing.T) {
			var m Mode
			if err := m.UnmarshalText([]byte(text)); err == nil {
				t.Errorf("mode %q: got %v, want an error", text, m)
			}
		})
	}
}

package hub

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"orrery.dev/orrery/internal/process"
	"orrery.dev/orrery/internal/testenv"
)

func TestPlan(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hub")
	p, err := Plan(embedded(dir))
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(p.Processes))
	for _, one := range p.Processes {
		names = append(names, one.Name)
	}
	if diff := cmp.Diff([]string{"etcd", "kube-apiserver", "kube-controller-manager"}, names); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plan made the data directory: %v", err)
	}

	// With a complete data directory, the plan also names files only, without their content.
	o, err := complete(embedded(dir))
	if err != nil {
		t.Fatal(err)
	}
	d := dataDir(dir)
	lock, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	keys := keyring{dir: d, leaves: leaves(o), now: o.now}
	if _, err := keys.ensure(); err != nil {
		t.Fatal(err)
	}
	p, err = Plan(embedded(dir))
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"PRIVATE KEY", "BEGIN", "client-key-data", "LS0t"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("the plan contains %q", secret)
		}
	}
}

func TestPlanExternal(t *testing.T) {
	p, err := Plan(Options{DataDir: filepath.Join(t.TempDir(), "hub"), Kubeconfig: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Processes) > 0 {
		t.Errorf("processes: %v", p.Processes)
	}
}

func TestFsync(t *testing.T) {
	for name, unsafe := range map[string]bool{"Safe": false, "Unsafe": true} {
		t.Run(name, func(t *testing.T) {
			o := embedded(filepath.Join(t.TempDir(), "hub"))
			o.UnsafeNoFsync = unsafe
			p, err := Plan(o)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(strings.Join(p.Processes[0].Command, " "), "--unsafe-no-fsync"); got != unsafe {
				t.Errorf("etcd runs without fsync: %v, want %v", got, unsafe)
			}
		})
	}
}

func TestAdmissionWebhooks(t *testing.T) {
	for name, on := range map[string]bool{"Off": false, "On": true} {
		t.Run(name, func(t *testing.T) {
			o := embedded(filepath.Join(t.TempDir(), "hub"))
			o.AdmissionWebhooks = on
			p, err := Plan(o)
			if err != nil {
				t.Fatal(err)
			}
			for _, arg := range p.Processes[1].Command {
				plugins, found := strings.CutPrefix(arg, "--disable-admission-plugins=")
				for _, plugin := range []string{"MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"} {
					if disabled := slices.Contains(strings.Split(plugins, ","), plugin); found && disabled == on {
						t.Errorf("%s is disabled: %v", plugin, disabled)
					}
				}
			}
		})
	}
}

func TestOptionsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		flag string
	}{
		"PortTooHigh":      {Options{SecurePort: 65536}, "--secure-port"},
		"PortNegative":     {Options{FleetPort: -1}, "--fleet-port"},
		"PortsEqual":       {Options{SecurePort: 7000, FleetPort: 7000}, "--fleet-port"},
		"PublicPortTaken":  {Options{FleetPort: 7000, PublicPort: 7000}, "--public-address"},
		"PublicPortIsAPI":  {Options{SecurePort: 7000, PublicPort: 7000}, "--public-address"},
		"PublicTooHigh":    {Options{PublicPort: 65536}, "--public-address"},
		"AddressIsAName":   {Options{BindAddress: "example.com"}, "--bind-address"},
		"NoSuchBinary":     {Options{KubeBinary: "/does/not/exist"}, "--kube-binary"},
		"WebhooksExternal": {Options{Kubeconfig: "k", AdmissionWebhooks: true}, "--admission-webhooks"},
		"AdvertiseOnlyExt": {Options{FleetAdvertiseHost: "example.com"}, "--fleet-advertise-host"},
		"AdvertiseNotDNS":  {Options{Kubeconfig: "k", FleetAdvertiseHost: "under_score"}, "--fleet-advertise-host"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.o.KubeBinary == "" {
				c.o.KubeBinary = testenv.KubeBinary()
			}
			c.o.DataDir = t.TempDir()
			if _, err := Plan(c.o); err == nil || !strings.Contains(err.Error(), c.flag) {
				t.Errorf("want an error that names %s, got: %v", c.flag, err)
			}
		})
	}
}

func TestPortsAreKept(t *testing.T) {
	d := dataDir(t.TempDir())
	choose := func(o Options) Options {
		t.Helper()
		o.BindAddress, o.PublicAddress = loopbackAddress, loopbackAddress
		chosen, err := choosePorts(&o, d)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(chosen.keep(d), chosen.release()); err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := choose(Options{})
	if first.SecurePort == 0 || first.FleetPort == 0 || first.PublicPort == 0 {
		t.Fatalf("ports: %d, %d, %d", first.SecurePort, first.FleetPort, first.PublicPort)
	}
	if given := choose(Options{SecurePort: 1234}); given.SecurePort != 1234 || given.FleetPort != first.FleetPort {
		t.Errorf("ports: %d, %d", given.SecurePort, given.FleetPort)
	}
	if again := choose(Options{}); again.SecurePort != first.SecurePort || again.FleetPort != first.FleetPort || again.PublicPort != first.PublicPort {
		t.Errorf("ports: %d, %d, %d, before %d, %d, %d", again.SecurePort, again.FleetPort, again.PublicPort, first.SecurePort, first.FleetPort, first.PublicPort)
	}
}

// TestPortsStayReserved: a port that a hub has chosen, now or at an earlier start, stays
// reserved until the hub releases it.
func TestPortsStayReserved(t *testing.T) {
	d := dataDir(t.TempDir())
	o := Options{BindAddress: loopbackAddress, PublicAddress: loopbackAddress}
	chosen, err := choosePorts(&o, d)
	if err != nil {
		t.Fatal(err)
	}
	numbers := []int{o.SecurePort, o.FleetPort, o.PublicPort}
	reserved := func(when string, want bool) {
		t.Helper()
		for _, number := range numbers {
			port, err := process.ReservePort(loopbackAddress, number)
			if (err != nil) != want {
				t.Errorf("%s: port %d is reserved: %t, want %t", when, number, !want, want)
			}
			if err == nil {
				if err := port.Release(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	reserved("chosen now", true)
	if err := errors.Join(chosen.keep(d), chosen.release()); err != nil {
		t.Fatal(err)
	}
	reserved("given back", false)

	again := Options{BindAddress: loopbackAddress, PublicAddress: loopbackAddress}
	if chosen, err = choosePorts(&again, d); err != nil {
		t.Fatal(err)
	}
	reserved("kept, before the hub starts", false)
	chosen.reserveKept(&again)
	reserved("kept", true)
	other := chosen
	other.reserved = nil
	other.reserveKept(&again)
	if len(other.reserved) > 0 {
		t.Errorf("%d ports are reserved twice", len(other.reserved))
	}
	if err := chosen.release(); err != nil {
		t.Error(err)
	}
	reserved("given back again", false)

	given := Options{BindAddress: loopbackAddress, PublicAddress: loopbackAddress, SecurePort: numbers[0] + 1, FleetPort: 1, PublicPort: 2}
	if chosen, err = choosePorts(&given, d); err != nil {
		t.Fatal(err)
	}
	chosen.reserveKept(&given)
	reserved("others are given", false)
}

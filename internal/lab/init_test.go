package lab

import "testing"

// TestSystemd: systemd in a host starts the enabled units, also after a power cut.
func TestSystemd(t *testing.T) {
	l, err := Start(t.Context(), Options{Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	h := l.Host("host-1")
	if got := inHost(t, h, "systemctl is-system-running --wait"); got != "running" {
		t.Errorf("the system is %s", got)
	}
	before, err := h.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	inHost(t, h, `printf '[Service]\nExecStart=/bin/sleep 4242\n[Install]\nWantedBy=multi-user.target\n' >/etc/systemd/system/service.service
systemctl enable --now service.service`)
	h.Kill()
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := inHost(t, h, "systemctl is-system-running --wait; systemctl is-active service.service"); got != "running\nactive" {
		t.Errorf("after the boot the system and the service are %s", got)
	}
	if out, err := ssh(t, h, "root", "", "systemctl show -p ActiveState --value service.service"); err != nil || out != "active" {
		t.Errorf("over ssh the service is %q, %v", out, err)
	}
	inHost(t, h, "systemctl disable --now service.service; rm /etc/systemd/system/service.service; systemctl daemon-reload")
	err = until(t.Context(), func() error {
		after, err := h.Snapshot(t.Context())
		if err != nil {
			return err
		}
		if diff := Diff(before, after); diff != "" {
			return differsError(diff)
		}
		return nil
	})
	if err != nil {
		t.Errorf("after the service was removed: %v", err)
	}
}

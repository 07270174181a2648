package lab

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSnapshot(t *testing.T) {
	h := lab.Host("host-2")
	before, err := h.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		do, undo string
		want     []string // beginnings of the lines of the difference
	}{
		"Nothing":         {do: "true", undo: "true"},
		"NewFile":         {do: "echo a >/etc/new", undo: "rm /etc/new", want: []string{"+ file /etc/new -rw-r--r-- 0:0 "}},
		"NewInOpt":        {do: "mkdir /opt/new", undo: "rmdir /opt/new", want: []string{"+ file /opt/new drwxr-xr-x 0:0"}},
		"Mode":            {do: "chmod 600 /etc/debian_version", undo: "chmod 644 /etc/debian_version", want: []string{"+ file /etc/debian_version -rw------- 0:0 "}},
		"Content":         {do: "cp -p /etc/hostname /root/h; echo x >/etc/hostname", undo: "cat /root/h >/etc/hostname; rm /root/h", want: []string{"- file /etc/hostname ", "+ file /etc/hostname ", "+ file /root/h "}},
		"Deleted":         {do: "mv /etc/debian_version /run/kept", undo: "mv /run/kept /etc/debian_version", want: []string{"+ file /etc/debian_version deleted", "+ file /run/kept "}},
		"MadeAndRemoved":  {do: "mkdir -p /etc/systemd/x && touch /etc/systemd/x/y && rm -r /etc/systemd/x", undo: "true"},
		"Mount":           {do: "mount -t tmpfs x /mnt", undo: "umount /mnt", want: []string{"+ mount /mnt tmpfs x"}},
		"LinkAndItsRoute": {do: "ip link add x type bridge && ip address add 10.99.0.1/24 dev x && ip link set x up", undo: "ip link del x", want: []string{"+ link x"}},
		"Rule":            {do: "nft add table ip x; nft add chain ip x y; nft add rule ip x y counter accept", undo: "nft delete table ip x", want: []string{"+ rule table ip x {", "+ rule table ip x chain y {", "+ rule table ip x chain y counter accept"}},
		"IPTables":        {do: "iptables -N X; iptables -A X -j DROP", undo: "iptables -F X; iptables -X X; nft delete table ip filter", want: []string{"+ rule table ip filter {"}},
		"Process":         {do: "sleep 4343 >/dev/null 2>&1 &", undo: "pkill -f 'sleep 434[3]'", want: []string{"+ process sleep 4343 1"}},
		"Cgroup":          {do: "mkdir /sys/fs/cgroup/pids/x", undo: "rmdir /sys/fs/cgroup/pids/x", want: []string{"+ cgroup /pids/x"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inHost(t, h, c.do)
			// A process that was started has its name a moment later.
			err := until(t.Context(), func() error {
				during, err := h.Snapshot(t.Context())
				if err != nil {
					return err
				}
				diff := Diff(before, during)
				if len(c.want) == 0 && diff != "" {
					return differsError(diff)
				}
				for _, line := range c.want {
					if !strings.Contains("\n"+diff, "\n"+line) {
						return fmt.Errorf("no line %q in:\n%s", line, diff)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			inHost(t, h, c.undo)
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
				t.Errorf("after it was undone: %v", err)
			}
		})
	}
}

type differsError string

func (e differsError) Error() string { return "difference:\n" + string(e) }

func TestDiff(t *testing.T) {
	a := Snapshot{"file /a": "1", "file /b": "1", "link x": ""}
	b := Snapshot{"file /a": "2", "link x": "", "link y": ""}
	want := "- file /a 1\n+ file /a 2\n- file /b 1\n+ link y \n"
	if diff := cmp.Diff(want, Diff(a, b)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

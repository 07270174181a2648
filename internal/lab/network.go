package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"orrery.dev/orrery/internal/disk"
)

// records is the directory with a file for each lab of this machine. The file is named by the lab's
// number, has the lab's remains, and is locked while the lab is alive.
const records = "/run/orrery-lab"

// network is the network of a lab: a bridge and the subnet 10.77.N.0/24, where N is the number of
// the lab. gateway is the address of this machine in it.
type network struct {
	bridge  string
	subnet  netip.Prefix
	gateway netip.Addr
}

// maxHosts is the number of addresses in the subnet for hosts, which begin with 11.
const maxHosts = 254 - 10

// maxClients is the number of addresses in the subnet for clients, which are those between the
// address of the machine and the first host.
const maxClients = 9

// client returns the address of the client with this number, from 1.
func (n *network) client(number int) netip.Addr {
	a := n.subnet.Addr().As4()
	a[3] = byte(1 + number)
	return netip.AddrFrom4(a)
}

// address returns the address of the host with this number, from 1.
func (n *network) address(host int) netip.Addr {
	a := n.subnet.Addr().As4()
	a[3] = byte(10 + host)
	return netip.AddrFrom4(a)
}

// claimNetwork removes what labs of killed processes left behind. Then it takes the first free
// number for a new lab and creates its bridge. It also returns the open and locked file of the lab
// in records.
func claimNetwork(ctx context.Context) (*network, *os.File, error) {
	if err := os.MkdirAll(records, 0o700); err != nil {
		return nil, nil, err
	}
	all, err := os.Open(records)
	if err != nil {
		return nil, nil, err
	}
	defer all.Close()
	// Only one process at a time may do this: a new record that is not locked yet looks like that of a
	// dead lab.
	if err := disk.LockOpen(ctx, all); err != nil {
		return nil, nil, err
	}
	if err := removeLeftovers(ctx); err != nil {
		return nil, nil, fmt.Errorf("remove leftovers of dead labs: %w", err)
	}
	for number := range 256 {
		name := strconv.Itoa(number)
		record, err := os.OpenFile(filepath.Join(records, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if exists(err) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if err := disk.TryLockOpen(record); err != nil {
			return nil, nil, errors.Join(err, record.Close())
		}
		n := &network{bridge: bridgeName(name)}
		n.subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(number), 0}), 24)
		n.gateway = n.subnet.Addr().Next()
		if err := n.make(ctx); err != nil {
			return nil, nil, errors.Join(err, os.Remove(record.Name()), record.Close())
		}
		return n, record, nil
	}
	return nil, nil, fmt.Errorf("all networks 10.77.0.0/24 to 10.77.255.0/24 are taken: remove what no lab uses from %s", records)
}

// bridgeName returns the name of the bridge of the lab with this number.
func bridgeName(number string) string { return "orlab" + number }

// make creates the bridge with the address of the machine. The number belongs to this lab, so links
// that have its names already are of a dead one.
func (n *network) make(ctx context.Context) error {
	if err := removeLinks(ctx, n.bridge); err != nil {
		return err
	}
	if err := run(ctx, "ip", "link", "add", n.bridge, "type", "bridge"); err != nil {
		return err
	}
	err := run(ctx, "ip", "address", "add", netip.PrefixFrom(n.gateway, n.subnet.Bits()).String(), "dev", n.bridge)
	if err == nil {
		err = run(ctx, "ip", "link", "set", n.bridge, "up")
	}
	if err != nil {
		return errors.Join(err, removeLinks(ctx, n.bridge))
	}
	return nil
}

// connect creates a link between the bridge and the network namespace of the process pid, where it
// is eth0. link is the name at the bridge. The hardware address follows from address, so it stays
// the same when a host restarts. The caller assigns address itself.
func (n *network) connect(ctx context.Context, link string, pid int, address netip.Addr) error {
	a := address.As4()
	card := fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3])
	err := run(ctx, "ip", "link", "add", link, "type", "veth",
		"peer", "name", "eth0", "address", card, "netns", strconv.Itoa(pid))
	if err != nil {
		return err
	}
	return run(ctx, "ip", "link", "set", link, "master", n.bridge, "up")
}

// disconnect removes the link with this name, if it exists.
func (n *network) disconnect(link string) {
	_ = run(context.Background(), "ip", "link", "delete", link)
}

// removeLinks removes the bridge of a lab and the links of its hosts and clients. The kernel
// removes a link with the network namespace at its other end, but some time later: until then a
// lab with the same number cannot create a link with that name.
func removeLinks(ctx context.Context, bridge string) error {
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return err
	}
	var errs []error
	for _, link := range links {
		name := link.Name()
		if name == bridge || strings.HasPrefix(name, bridge+"h") || strings.HasPrefix(name, bridge+"c") {
			errs = append(errs, removeLink(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// removeLink removes the network link with this name. A link that the kernel removes first is no
// error.
func removeLink(ctx context.Context, name string) error {
	err := run(ctx, "ip", "link", "delete", name)
	if _, missing := os.Lstat("/sys/class/net/" + name); errors.Is(missing, fs.ErrNotExist) {
		return nil
	}
	return err
}

// remains lists what a lab has on the machine besides processes. If the lab's process is killed,
// its processes are killed as well, but these stay. The next lab removes them.
type remains struct {
	Record string   `json:"-"`
	Bridge string   `json:"bridge"`
	Dir    string   `json:"dir"`
	Groups []string `json:"groups"`
}

// remove removes the links, cgroups, directory and record of a lab; missing ones are no error.
// After an error the record stays, so that the next lab tries again.
func (r remains) remove(ctx context.Context) error {
	errs := []error{removeLinks(ctx, r.Bridge)}
	for _, dir := range r.Groups {
		errs = append(errs, removeGroup(ctx, dir))
	}
	if r.Dir != "" {
		errs = append(errs, removeAll(ctx, r.Dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(r.Record)
}

// removeLeftovers removes the remains of all labs whose process was killed. The caller holds the
// lock of records.
func removeLeftovers(ctx context.Context) error {
	entries, err := os.ReadDir(records)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		errs = append(errs, removeLeftover(ctx, filepath.Join(records, entry.Name())))
	}
	return errors.Join(errs...)
}

// removeLeftover removes the remains of the lab with the record at path. It does nothing if the lab
// is alive.
func removeLeftover(ctx context.Context, path string) error {
	record, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer record.Close()
	if err := disk.TryLockOpen(record); errors.Is(err, disk.ErrLocked) {
		return nil // the lab is alive
	} else if err != nil {
		return err
	}
	r := remains{Record: path, Bridge: bridgeName(filepath.Base(path))}
	// The record is empty if the lab was killed before it wrote it. Such a lab has a bridge at most.
	err = json.NewDecoder(record).Decode(&r)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return r.remove(ctx)
}

package plan

import "slices"

// distributions maps the ID in os-release of a Linux distribution to the package managers that the
// distribution may have, the preferred one first.
var distributions = map[string][]string{
	"debian": {managerAPT}, "ubuntu": {managerAPT}, "raspbian": {managerAPT}, "linuxmint": {managerAPT}, "deepin": {managerAPT},
	"rhel": {managerDNF, managerYUM}, "centos": {managerDNF, managerYUM}, "rocky": {managerDNF, managerYUM},
	"almalinux": {managerDNF, managerYUM}, "ol": {managerDNF, managerYUM}, "fedora": {managerDNF, managerYUM},
	"amzn": {managerDNF, managerYUM}, "anolis": {managerDNF, managerYUM}, "alinux": {managerDNF, managerYUM},
	"openEuler": {managerDNF, managerYUM}, "euleros": {managerDNF, managerYUM},
	"kylin": {managerDNF, managerYUM, managerAPT}, "uos": {managerDNF, managerYUM, managerAPT},
	"sles": {managerZypper}, "suse": {managerZypper}, "opensuse": {managerZypper}, "opensuse-leap": {managerZypper},
	"opensuse-tumbleweed": {managerZypper},
}

// The package managers that Orrery can call. They are the values of Packages.Manager.
const (
	managerAPT    = "apt"
	managerDNF    = "dnf"
	managerYUM    = "yum"
	managerZypper = "zypper"
)

// programs maps each package manager to the program that the host must have for it.
var programs = map[string]string{managerAPT: "apt-get", managerDNF: "dnf", managerYUM: "yum", managerZypper: "zypper"}

// packages maps programs, such as nft, to the packages that contain them, by package manager. It
// lists only programs whose package has another name. The key "" is for all other managers.
var packages = map[string]map[string]string{
	"nft":       {"": "nftables"},
	"ip6tables": {"": "iptables"},
	"conntrack": {managerAPT: "conntrack", "": "conntrack-tools"},
	"ip":        {managerDNF: "iproute", managerYUM: "iproute", "": "iproute2"},
	"mount":     {managerAPT: "mount", "": "util-linux"},
	"modprobe":  {"": "kmod"},
}

// managers returns the package managers that the host's Linux distribution may have, by the ID in
// os-release, or else by ID_LIKE. It is nil for an unknown distribution. The caller must not change
// the slice.
func managers(f Facts) []string {
	for _, id := range append([]string{f.OS}, f.OSLike...) {
		if m, ok := distributions[id]; ok {
			return m
		}
	}
	return nil
}

// PackageManager returns the package manager of a host, whose program is among Facts.Tools: apt,
// dnf, yum or zypper. If the host has several, it prefers that of the distribution. It returns ""
// if the host has none of them.
func PackageManager(f Facts) string {
	for _, manager := range append(slices.Clone(managers(f)), managerAPT, managerDNF, managerYUM, managerZypper) {
		if slices.Contains(f.Tools, programs[manager]) {
			return manager
		}
	}
	return ""
}

// packageOf returns the name of the package that contains a program: the name of the program itself
// unless the map packages has another. manager may be "" if the package manager is unknown.
func packageOf(tool, manager string) string {
	names := packages[tool]
	if name, ok := names[manager]; ok {
		return name
	}
	if name, ok := names[""]; ok {
		return name
	}
	return tool
}

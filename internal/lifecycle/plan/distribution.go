package plan

import "slices"

// distributions says which package managers a Linux has, by ID of its os-release. Some come with either.
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

// Package managers, as Packages names them.
const (
	managerAPT    = "apt"
	managerDNF    = "dnf"
	managerYUM    = "yum"
	managerZypper = "zypper"
)

// programs of the package managers.
var programs = map[string]string{managerAPT: "apt-get", managerDNF: "dnf", managerYUM: "yum", managerZypper: "zypper"}

// packages that have a tool, where they are not named as the tool is; "" is any other manager.
var packages = map[string]map[string]string{
	"nft":       {"": "nftables"},
	"ip6tables": {"": "iptables"},
	"conntrack": {managerAPT: "conntrack", "": "conntrack-tools"},
	"ip":        {managerDNF: "iproute", managerYUM: "iproute", "": "iproute2"},
	"mount":     {managerAPT: "mount", "": "util-linux"},
	"modprobe":  {"": "kmod"},
}

// managers that the host's Linux may have, by its ID, else by what it is like; empty if it is not known.
func managers(f Facts) []string {
	for _, id := range append([]string{f.OS}, f.OSLike...) {
		if m, ok := distributions[id]; ok {
			return m
		}
	}
	return nil
}

// PackageManager is that of the host: apt, dnf, yum or zypper, or empty if it has none that we know.
func PackageManager(f Facts) string {
	for _, manager := range append(slices.Clone(managers(f)), managerAPT, managerDNF, managerYUM, managerZypper) {
		if slices.Contains(f.Tools, programs[manager]) {
			return manager
		}
	}
	return ""
}

// packageOf is the package that has a tool.
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

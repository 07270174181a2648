package plan

import "slices"

// distributions maps the ID of os-release to the package managers of that Linux. Some come with
// either.
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

// Package managers, as in Packages.Manager.
const (
	managerAPT    = "apt"
	managerDNF    = "dnf"
	managerYUM    = "yum"
	managerZypper = "zypper"
)

// programs maps package managers to their programs.
var programs = map[string]string{managerAPT: "apt-get", managerDNF: "dnf", managerYUM: "yum", managerZypper: "zypper"}

// packages maps tools to packages with other names, by package manager. "" is any other manager.
var packages = map[string]map[string]string{
	"nft":       {"": "nftables"},
	"ip6tables": {"": "iptables"},
	"conntrack": {managerAPT: "conntrack", "": "conntrack-tools"},
	"ip":        {managerDNF: "iproute", managerYUM: "iproute", "": "iproute2"},
	"mount":     {managerAPT: "mount", "": "util-linux"},
	"modprobe":  {"": "kmod"},
}

// managers returns the package managers that the host's Linux may have, by its ID, else by ID_LIKE.
// It is empty for an unknown Linux.
func managers(f Facts) []string {
	for _, id := range append([]string{f.OS}, f.OSLike...) {
		if m, ok := distributions[id]; ok {
			return m
		}
	}
	return nil
}

// PackageManager returns the package manager of the host: apt, dnf, yum or zypper. It is empty if
// the host has another one or none.
func PackageManager(f Facts) string {
	for _, manager := range append(slices.Clone(managers(f)), managerAPT, managerDNF, managerYUM, managerZypper) {
		if slices.Contains(f.Tools, programs[manager]) {
			return manager
		}
	}
	return ""
}

// packageOf returns the package that contains a tool.
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

package unit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"orrery.dev/orrery/internal/lifecycle/plan"
)

// sealFormat is the format of the first line of a systemd unit file that Orrery writes. It has the
// Hash of the unit and the digest of the lines below. They show whether somebody changed the file.
const sealFormat = "# Written by Orrery; a change is undone. Unit %s, text %s.\n"

// definition returns the content of the systemd unit file for u, which check must have accepted.
// The first line has the form of sealFormat.
func definition(u plan.Unit) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("[Unit]")
	line("Description=%s", description(u))
	line("Wants=network-online.target")
	after := []string{"network-online.target"}
	for _, name := range u.After {
		after = append(after, name+".service")
	}
	line("After=%s", strings.Join(after, " "))
	line("StartLimitIntervalSec=0")
	if len(u.Mounts) > 0 {
		paths := make([]string, 0, len(u.Mounts))
		for _, path := range u.Mounts {
			paths = append(paths, quote(path))
		}
		line("RequiresMountsFor=%s", strings.Join(paths, " "))
	}
	if u.Data != "" { // one of the two is enough
		line("AssertPathExistsGlob=|%s\nAssertPathExists=|!%s", verbatim(u.Data), verbatim(u.Established))
	}

	line("\n[Service]")
	if u.Notify {
		// The unit may become ready only after the slowest host. The caller has a timeout of its own.
		line("Type=notify\nTimeoutStartSec=infinity")
	} else {
		line("Type=exec")
	}
	for _, name := range slices.Sorted(maps.Keys(u.Env)) {
		line("Environment=%s", quote(name+"="+u.Env[name]))
	}
	if u.Established != "" {
		line("EnvironmentFile=-%s", verbatim(u.Established))
	}
	words := []string{quote(u.Command[0])}
	for _, arg := range u.Command[1:] {
		words = append(words, quote(strings.ReplaceAll(arg, "$", "$$"))) // $NAME would be a variable
	}
	line("ExecStart=%s", strings.Join(words, " \\\n  "))
	line("Restart=always\nRestartSec=1s\nTimeoutStopSec=30s")
	if u.KillMode != "" {
		line("KillMode=%s", u.KillMode)
	}
	if u.Delegate {
		// Without this, systemd would count the tasks of all containers for the limit of the unit.
		line("Delegate=yes\nTasksMax=infinity")
	}
	if u.LimitNOFILE > 0 {
		line("LimitNOFILE=%d", u.LimitNOFILE)
	}

	line("\n[Install]")
	line("WantedBy=multi-user.target")
	text := []byte(b.String())
	return append(fmt.Appendf(nil, sealFormat, Hash(u), digest(text)), text...)
}

// sealed matches a first line in the form of sealFormat, and captures the hash and the digest.
var sealed = regexp.MustCompile(`^# .* Unit ([0-9a-f]{32}), text ([0-9a-f]{32})\.\n`)

// definitionHash returns the Hash of the unit for which a systemd unit file was written. file is
// the content of that file. The result is "" if the file was changed since, or was not written by
// Orrery.
func definitionHash(file []byte) string {
	seal := sealed.FindSubmatch(file)
	if seal == nil || string(seal[2]) != digest(file[len(seal[0]):]) {
		return ""
	}
	return string(seal[1])
}

// description returns the value of the setting Description= of a unit: its description in one line,
// or its name if it has no description. It removes backslashes at the end, since a backslash would
// continue the line, and escapes %.
func description(u plan.Unit) string {
	s := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(u.Description, "?"))
	if s = strings.Trim(s, " \\"); s == "" {
		s = u.Name
	}
	return strings.ReplaceAll(s, "%", "%%")
}

// verbatim returns a path as the value of a systemd setting that takes one path. It escapes % and
// quotes nothing.
func verbatim(path string) string { return strings.ReplaceAll(path, "%", "%%") }

// quote quotes a word for a systemd setting and escapes %. A word of plain characters gets no
// quotes, for readability. It does not escape $, which has a meaning only in ExecStart=.
func quote(s string) string {
	s = strings.ReplaceAll(s, "%", "%%") // %n is a specifier
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=,@+%$", r))
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsControl(r) && r < unicode.MaxLatin1:
			// Characters above 0x7f are two bytes in UTF-8.
			for _, c := range []byte(string(r)) {
				b.WriteString(`\x` + strconv.FormatUint(uint64(c)|0x100, 16)[1:])
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

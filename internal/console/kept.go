package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"orrery.dev/orrery/internal/disk"
)

// Sessions of links survive a restart of the hub's process, so an upgrade of the hub signs nobody
// out. Sessions of tokens do not, because the tokens would have to be stored.

// kept is the content of Options.SessionsFile, as JSON.
type kept struct {
	Hub      string        `json:"hub"` // HubID of the hub that authenticated the users
	Sessions []keptSession `json:"sessions"`
}

// keptSession is a session in Options.SessionsFile. It has only the digest of the secret in the
// browser's cookie, so the file opens no session.
type keptSession struct {
	Key     []byte              `json:"key"` // SHA-256 of the secret
	User    string              `json:"user"`
	UID     string              `json:"uid,omitempty"`
	Groups  []string            `json:"groups,omitempty"`
	Extra   map[string][]string `json:"extra,omitempty"`
	Expires time.Time           `json:"expires"`
}

// keep writes the open sessions that were opened with links to Options.SessionsFile; "": it does
// nothing. Callers call it before they answer that a session began or ended. If the file cannot be
// written, keep logs that and removes the file, so that an ended session cannot be restored. After
// the console has stopped, keep leaves the file as it is.
func (c *Console) keep() {
	if c.options.SessionsFile == "" {
		return
	}
	c.keeping.Lock()
	defer c.keeping.Unlock()
	all := kept{Hub: c.options.HubID, Sessions: []keptSession{}}
	for _, s := range c.sessions.all() {
		if s.token != "" || s.ctx.Err() != nil {
			continue
		}
		who := s.User()
		all.Sessions = append(all.Sessions, keptSession{
			Key: s.key[:], User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra(), Expires: s.expires.UTC(),
		})
	}
	if c.ctx.Err() != nil {
		return // these sessions ended with the process and must stay in the file
	}
	raw, err := json.Marshal(all)
	if err == nil {
		err = disk.WriteFile(c.options.SessionsFile, 0o600, raw)
	}
	if err != nil {
		c.log.Error(errors.Join(err, disk.Remove(c.options.SessionsFile)), "Console sessions will end with this process, since they cannot be written down: make room, or see to the rights of the data directory")
	}
}

// resume restores the sessions in Options.SessionsFile that have not expired. None lasts longer
// than a new session. A missing file is no error. If the file is invalid or from another hub,
// resume restores nothing and logs why.
func (c *Console) resume() {
	if c.options.SessionsFile == "" {
		return
	}
	raw, err := os.ReadFile(c.options.SessionsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var all kept
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err == nil && all.Hub != c.options.HubID {
		err = fmt.Errorf("%s is of the hub %q, and this is %q", c.options.SessionsFile, all.Hub, c.options.HubID)
	}
	for _, r := range all.Sessions {
		if err == nil && (len(r.Key) != len(digest{}) || r.User == "") {
			err = fmt.Errorf("%s has a session without a key or a user", c.options.SessionsFile)
		}
	}
	if err != nil {
		c.log.Error(err, "Console sessions of before are over, since they are not known: users open the console anew")
		return
	}
	now := time.Now()
	for _, r := range all.Sessions {
		expires := r.Expires
		if latest := now.Add(c.lifetime); expires.After(latest) {
			expires = latest
		}
		if now.Before(expires) {
			c.begin(digest(r.Key), &user.DefaultInfo{Name: r.User, UID: r.UID, Groups: r.Groups, Extra: r.Extra}, "", expires)
		}
	}
}
